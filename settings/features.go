package settings

import "strings"

// Flag is the state of one feature.
type Flag string

// The three states every flag knows, and the fourth of secure-pod-defaults.
const (
	Enabled          Flag = "Enabled"
	Allowed          Flag = "Allowed"
	Disabled         Flag = "Disabled"
	AllowRootBounded Flag = "AllowRootBounded"
)

// Features is config-features.
type Features struct {
	MultiContainer             Flag
	MultiContainerProbing      Flag
	AutoDetectHTTP2            Flag
	TagHeaderRouting           Flag
	SecurePodDefaults          Flag
	QueueProxyMountPodInfo     Flag
	QueueProxyResourceDefaults Flag

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

// flags binds each key of config-features to its field, in the order of keys.go.
func (f *Features) flags() []struct {
	key  string
	flag *Flag
} {
	type row = struct {
		key  string
		flag *Flag
	}
	return []row{
		{"multi-container", &f.MultiContainer},
		{"multi-container-probing", &f.MultiContainerProbing},
		{"autodetect-http2", &f.AutoDetectHTTP2},
		{"tag-header-based-routing", &f.TagHeaderRouting},
		{"secure-pod-defaults", &f.SecurePodDefaults},
		{"queueproxy.mount-podinfo", &f.QueueProxyMountPodInfo},
		{"queueproxy.resource-defaults", &f.QueueProxyResourceDefaults},
		{"kubernetes.podspec-affinity", &f.PodSpecAffinity},
		{"kubernetes.podspec-topologyspreadconstraints", &f.PodSpecTopologySpreadConstraints},
		{"kubernetes.podspec-hostaliases", &f.PodSpecHostAliases},
		{"kubernetes.podspec-nodeselector", &f.PodSpecNodeSelector},
		{"kubernetes.podspec-tolerations", &f.PodSpecTolerations},
		{"kubernetes.podspec-fieldref", &f.PodSpecFieldRef},
		{"kubernetes.podspec-runtimeclassname", &f.PodSpecRuntimeClassName},
		{"kubernetes.podspec-dnspolicy", &f.PodSpecDNSPolicy},
		{"kubernetes.podspec-dnsconfig", &f.PodSpecDNSConfig},
		{"kubernetes.podspec-securitycontext", &f.PodSpecSecurityContext},
		{"kubernetes.podspec-shareprocessnamespace", &f.PodSpecShareProcessNamespace},
		{"kubernetes.podspec-hostipc", &f.PodSpecHostIPC},
		{"kubernetes.podspec-hostpid", &f.PodSpecHostPID},
		{"kubernetes.podspec-hostnetwork", &f.PodSpecHostNetwork},
		{"kubernetes.podspec-priorityclassname", &f.PodSpecPriorityClassName},
		{"kubernetes.podspec-schedulername", &f.PodSpecSchedulerName},
		{"kubernetes.podspec-init-containers", &f.PodSpecInitContainers},
		{"kubernetes.podspec-persistent-volume-claim", &f.PodSpecPersistentVolumeClaim},
		{"kubernetes.podspec-persistent-volume-write", &f.PodSpecPersistentVolumeWrite},
		{"kubernetes.podspec-volumes-emptydir", &f.PodSpecVolumesEmptyDir},
		{"kubernetes.podspec-volumes-image", &f.PodSpecVolumesImage},
		{"kubernetes.podspec-volumes-hostpath", &f.PodSpecVolumesHostPath},
		{"kubernetes.podspec-volumes-ephemeral", &f.PodSpecVolumesEphemeral},
		{"kubernetes.podspec-volumes-csi", &f.PodSpecVolumesCSI},
		{"kubernetes.podspec-volumes-mount-propagation", &f.PodSpecVolumesMountPropagation},
		{"kubernetes.containerspec-addcapabilities", &f.ContainerSpecAddCapabilities},
	}
}

// readFeatures ignores a word it does not know, as the contract says: the flag keeps its default.
func readFeatures(r *reader) Features {
	f := Features{}
	for _, row := range f.flags() {
		*row.flag = Disabled
	}
	f.MultiContainer, f.PodSpecVolumesEmptyDir = Enabled, Enabled
	for _, row := range f.flags() {
		words := []Flag{Enabled, Allowed, Disabled}
		if row.key == "secure-pod-defaults" {
			words = append(words, AllowRootBounded)
		}
		for _, w := range words {
			if strings.EqualFold(r.text(row.key, ""), string(w)) {
				*row.flag = w
			}
		}
	}
	return f
}
