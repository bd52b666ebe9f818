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
	// AllowRootBounded is a value of secure-pod-defaults only: like Enabled, but root is not refused.
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

// Features are the flags of ConfigMap config-features.
type Features struct {
	MultiContainer                   Flag
	MultiContainerProbing            Flag
	AutodetectHTTP2                  Flag
	TagHeaderBasedRouting            Flag
	SecurePodDefaults                Flag
	QueueProxyMountPodInfo           Flag
	QueueProxyResourceDefaults       Flag
	PodSpecAffinity                  Flag
	PodSpecTopologySpreadConstraints Flag
	PodSpecHostAliases               Flag
	PodSpecNodeSelector              Flag
	PodSpecTolerations               Flag
	PodSpecFieldRef                  Flag
	PodSpecRuntimeClassName          Flag
	PodSpecDNSPolicy                 Flag
	PodSpecDNSConfig                 Flag
	PodSpecSecurityContext           Flag
	PodSpecShareProcessNamespace     Flag
	PodSpecHostIPC                   Flag
	PodSpecHostPID                   Flag
	PodSpecHostNetwork               Flag
	PodSpecPriorityClassName         Flag
	PodSpecSchedulerName             Flag
	PodSpecInitContainers            Flag
	PodSpecPersistentVolumeClaim     Flag
	PodSpecPersistentVolumeWrite     Flag
	PodSpecVolumesEmptyDir           Flag
	PodSpecVolumesImage              Flag
	PodSpecVolumesHostPath           Flag
	PodSpecVolumesEphemeral          Flag
	PodSpecVolumesCSI                Flag
	PodSpecVolumesMountPropagation   Flag
	ContainerSpecAddCapabilities     Flag
}

// FlagField is one flag of a Features value.
type FlagField struct {
	Key FlagKey
	// Value points into the Features value the field was taken from.
	Value *Flag
	// Default holds when the ConfigMap says nothing, or something that is no value.
	Default Flag
}

// Fields lists every flag of f with its key and default, in the order of the struct.
func (f *Features) Fields() []FlagField {
	return []FlagField{
		{KeyMultiContainer, &f.MultiContainer, Enabled},
		{KeyMultiContainerProbing, &f.MultiContainerProbing, Disabled},
		{KeyAutodetectHTTP2, &f.AutodetectHTTP2, Disabled},
		{KeyTagHeaderBasedRouting, &f.TagHeaderBasedRouting, Disabled},
		{KeySecurePodDefaults, &f.SecurePodDefaults, Disabled},
		{KeyQueueProxyMountPodInfo, &f.QueueProxyMountPodInfo, Disabled},
		{KeyQueueProxyResourceDefaults, &f.QueueProxyResourceDefaults, Disabled},
		{KeyPodSpecAffinity, &f.PodSpecAffinity, Disabled},
		{KeyPodSpecTopologySpreadConstraints, &f.PodSpecTopologySpreadConstraints, Disabled},
		{KeyPodSpecHostAliases, &f.PodSpecHostAliases, Disabled},
		{KeyPodSpecNodeSelector, &f.PodSpecNodeSelector, Disabled},
		{KeyPodSpecTolerations, &f.PodSpecTolerations, Disabled},
		{KeyPodSpecFieldRef, &f.PodSpecFieldRef, Disabled},
		{KeyPodSpecRuntimeClassName, &f.PodSpecRuntimeClassName, Disabled},
		{KeyPodSpecDNSPolicy, &f.PodSpecDNSPolicy, Disabled},
		{KeyPodSpecDNSConfig, &f.PodSpecDNSConfig, Disabled},
		{KeyPodSpecSecurityContext, &f.PodSpecSecurityContext, Disabled},
		{KeyPodSpecShareProcessNamespace, &f.PodSpecShareProcessNamespace, Disabled},
		{KeyPodSpecHostIPC, &f.PodSpecHostIPC, Disabled},
		{KeyPodSpecHostPID, &f.PodSpecHostPID, Disabled},
		{KeyPodSpecHostNetwork, &f.PodSpecHostNetwork, Disabled},
		{KeyPodSpecPriorityClassName, &f.PodSpecPriorityClassName, Disabled},
		{KeyPodSpecSchedulerName, &f.PodSpecSchedulerName, Disabled},
		{KeyPodSpecInitContainers, &f.PodSpecInitContainers, Disabled},
		{KeyPodSpecPersistentVolumeClaim, &f.PodSpecPersistentVolumeClaim, Disabled},
		{KeyPodSpecPersistentVolumeWrite, &f.PodSpecPersistentVolumeWrite, Disabled},
		{KeyPodSpecVolumesEmptyDir, &f.PodSpecVolumesEmptyDir, Enabled},
		{KeyPodSpecVolumesImage, &f.PodSpecVolumesImage, Disabled},
		{KeyPodSpecVolumesHostPath, &f.PodSpecVolumesHostPath, Disabled},
		{KeyPodSpecVolumesEphemeral, &f.PodSpecVolumesEphemeral, Disabled},
		{KeyPodSpecVolumesCSI, &f.PodSpecVolumesCSI, Disabled},
		{KeyPodSpecVolumesMountPropagation, &f.PodSpecVolumesMountPropagation, Disabled},
		{KeyContainerSpecAddCapabilities, &f.ContainerSpecAddCapabilities, Disabled},
	}
}

// DefaultFeatures returns what holds when ConfigMap config-features is empty.
func DefaultFeatures() Features {
	var f Features
	for _, field := range f.Fields() {
		*field.Value = field.Default
	}
	return f
}
