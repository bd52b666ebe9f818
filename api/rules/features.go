package rules

// Flag is the value of a feature flag in ConfigMap config-features.
type Flag string

const (
	// Enabled switches a feature on everywhere.
	Enabled Flag = "Enabled"
	// Allowed lets a manifest ask for a feature; checks that require Enabled still refuse it.
	Allowed Flag = "Allowed"
	// Disabled refuses a feature. A flag's zero value counts as Disabled.
	Disabled Flag = "Disabled"
	// AllowRootBounded is a value of secure-pod-defaults only: like Enabled, but root is not
	// refused.
	AllowRootBounded Flag = "AllowRootBounded"
)

// FlagKey is the key of a feature flag in ConfigMap config-features.
type FlagKey string

// The keys of config-features.
const (
	KeyMultiContainer                   FlagKey = "multi-container"
	KeyMultiContainerProbing            FlagKey = "multi-container-probing"
	KeyAutodetectHTTP2                  FlagKey = "autodetect-http2"
	KeyTagHeaderBasedRouting            FlagKey = "tag-header-based-routing"
	KeySecurePodDefaults                FlagKey = "secure-pod-defaults"
	KeyQueueProxyMountPodInfo           FlagKey = "queueproxy.mount-podinfo"
	KeyQueueProxyResourceDefaults       FlagKey = "queueproxy.resource-defaults"
	KeyPodSpecAffinity                  FlagKey = "kubernetes.podspec-affinity"
	KeyPodSpecTopologySpreadConstraints FlagKey = "kubernetes.podspec-topologyspreadconstraints"
	KeyPodSpecHostAliases               FlagKey = "kubernetes.podspec-hostaliases"
	KeyPodSpecNodeSelector              FlagKey = "kubernetes.podspec-nodeselector"
	KeyPodSpecTolerations               FlagKey = "kubernetes.podspec-tolerations"
	KeyPodSpecFieldRef                  FlagKey = "kubernetes.podspec-fieldref"
	KeyPodSpecRuntimeClassName          FlagKey = "kubernetes.podspec-runtimeclassname"
	KeyPodSpecDNSPolicy                 FlagKey = "kubernetes.podspec-dnspolicy"
	KeyPodSpecDNSConfig                 FlagKey = "kubernetes.podspec-dnsconfig"
	KeyPodSpecSecurityContext           FlagKey = "kubernetes.podspec-securitycontext"
	KeyPodSpecShareProcessNamespace     FlagKey = "kubernetes.podspec-shareprocessnamespace"
	KeyPodSpecHostIPC                   FlagKey = "kubernetes.podspec-hostipc"
	KeyPodSpecHostPID                   FlagKey = "kubernetes.podspec-hostpid"
	KeyPodSpecHostNetwork               FlagKey = "kubernetes.podspec-hostnetwork"
	KeyPodSpecPriorityClassName         FlagKey = "kubernetes.podspec-priorityclassname"
	KeyPodSpecSchedulerName             FlagKey = "kubernetes.podspec-schedulername"
	KeyPodSpecInitContainers            FlagKey = "kubernetes.podspec-init-containers"
	KeyPodSpecPersistentVolumeClaim     FlagKey = "kubernetes.podspec-persistent-volume-claim"
	KeyPodSpecPersistentVolumeWrite     FlagKey = "kubernetes.podspec-persistent-volume-write"
	KeyPodSpecVolumesEmptyDir           FlagKey = "kubernetes.podspec-volumes-emptydir"
	KeyPodSpecVolumesImage              FlagKey = "kubernetes.podspec-volumes-image"
	KeyPodSpecVolumesHostPath           FlagKey = "kubernetes.podspec-volumes-hostpath"
	KeyPodSpecVolumesEphemeral          FlagKey = "kubernetes.podspec-volumes-ephemeral"
	KeyPodSpecVolumesCSI                FlagKey = "kubernetes.podspec-volumes-csi"
	KeyPodSpecVolumesMountPropagation   FlagKey = "kubernetes.podspec-volumes-mount-propagation"
	KeyContainerSpecAddCapabilities     FlagKey = "kubernetes.containerspec-addcapabilities"
)

// Feature is one row of the table of feature flags.
type Feature struct {
	Key FlagKey
	// Default holds when the ConfigMap does not set the key, or sets it to an unknown word.
	Default Flag
	// Effect describes the flag for docs/settings.md and the shipped ConfigMap.
	Effect string
}

// FeatureTable lists every feature flag, in the order in which they are documented.
var FeatureTable = []Feature{
	{KeyMultiContainer, Enabled, "Permits several containers."},
	{KeyMultiContainerProbing, Disabled, "Permits probes on containers without the serving port."},
	{KeyAutodetectHTTP2, Disabled, "Lets queue-proxy find out whether the container speaks HTTP/2."},
	{KeyTagHeaderBasedRouting, Disabled, "Lets the header Knative-Serving-Tag choose a tagged target."},
	{KeySecurePodDefaults, Disabled, "Fills unset security context fields with the restricted profile; AllowRootBounded leaves runAsNonRoot alone."},
	{KeyQueueProxyMountPodInfo, Disabled, "Mounts the pod's annotations into queue-proxy: always (Enabled), or by annotation (Allowed)."},
	{KeyQueueProxyResourceDefaults, Disabled, "Gives queue-proxy CPU and memory limits when nothing else sets them."},
	{KeyPodSpecAffinity, Disabled, "Permits affinity in a revision template."},
	{KeyPodSpecTopologySpreadConstraints, Disabled, "Permits topologySpreadConstraints in a revision template."},
	{KeyPodSpecHostAliases, Disabled, "Permits hostAliases in a revision template."},
	{KeyPodSpecNodeSelector, Disabled, "Permits nodeSelector in a revision template."},
	{KeyPodSpecTolerations, Disabled, "Permits tolerations in a revision template."},
	{KeyPodSpecFieldRef, Disabled, "Permits fieldRef and resourceFieldRef in a revision template."},
	{KeyPodSpecRuntimeClassName, Disabled, "Permits runtimeClassName in a revision template."},
	{KeyPodSpecDNSPolicy, Disabled, "Permits dnsPolicy in a revision template."},
	{KeyPodSpecDNSConfig, Disabled, "Permits dnsConfig in a revision template."},
	{KeyPodSpecSecurityContext, Disabled, "Permits the pod's securityContext in a revision template."},
	{KeyPodSpecShareProcessNamespace, Disabled, "Permits shareProcessNamespace in a revision template."},
	{KeyPodSpecHostIPC, Disabled, "Permits hostIPC in a revision template."},
	{KeyPodSpecHostPID, Disabled, "Permits hostPID in a revision template."},
	{KeyPodSpecHostNetwork, Disabled, "Permits hostNetwork in a revision template."},
	{KeyPodSpecPriorityClassName, Disabled, "Permits priorityClassName in a revision template."},
	{KeyPodSpecSchedulerName, Disabled, "Permits schedulerName in a revision template."},
	{KeyPodSpecInitContainers, Disabled, "Permits initContainers in a revision template."},
	{KeyPodSpecPersistentVolumeClaim, Disabled, "Permits persistentVolumeClaim volumes in a revision template."},
	{KeyPodSpecPersistentVolumeWrite, Disabled, "Permits writable persistentVolumeClaim volumes in a revision template."},
	{KeyPodSpecVolumesEmptyDir, Enabled, "Permits emptyDir volumes in a revision template."},
	{KeyPodSpecVolumesImage, Disabled, "Permits image volumes in a revision template."},
	{KeyPodSpecVolumesHostPath, Disabled, "Permits hostPath volumes in a revision template."},
	{KeyPodSpecVolumesEphemeral, Disabled, "Permits ephemeral volumes in a revision template."},
	{KeyPodSpecVolumesCSI, Disabled, "Permits csi volumes in a revision template."},
	{KeyPodSpecVolumesMountPropagation, Disabled, "Permits mountPropagation in a revision template."},
	{KeyContainerSpecAddCapabilities, Disabled, "Permits capabilities.add in a revision template."},
}

// Features are the flags of ConfigMap config-features. A missing flag counts as Disabled.
type Features map[FlagKey]Flag

// DefaultFeatures returns the flags of an empty ConfigMap config-features.
func DefaultFeatures() Features {
	f := Features{}
	for _, row := range FeatureTable {
		f[row.Key] = row.Default
	}
	return f
}

// Enabled reports whether a flag is on without a manifest having to ask for it.
func (f Features) Enabled(key FlagKey) bool { return f[key] == Enabled }

// Allowed reports whether a manifest may use what the flag guards.
func (f Features) Allowed(key FlagKey) bool { return f[key] == Enabled || f[key] == Allowed }
