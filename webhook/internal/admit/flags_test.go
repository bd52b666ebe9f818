package admit

import (
	"strings"
	"testing"

	"ebb.dev/ebb/api/rules"
	"ebb.dev/ebb/settings"
)

const (
	container = "containers: [{image: example.test/hello}]"
	mounted   = "containers: [{image: example.test/hello, volumeMounts: [{name: v, mountPath: /v, readOnly: true}]}]\n"
)

// asking is, for each flag that forbids something, the pod that asks for it. A flag whose word is
// Enabled must be so; of the others Allowed is enough.
var asking = map[rules.FlagKey]struct {
	pod         string
	enabledOnly bool
}{
	rules.KeyMultiContainer: {`containers: [{image: example.test/a, ports: [{containerPort: 80}]}, {image: example.test/b}]`, true},
	rules.KeyMultiContainerProbing: {`containers: [{image: example.test/a, ports: [{containerPort: 80}]},
  {image: example.test/b, readinessProbe: {tcpSocket: {port: 81}}}]`, true},
	rules.KeyPodSpecAffinity:                  {container + "\naffinity: {nodeAffinity: {}}", false},
	rules.KeyPodSpecTopologySpreadConstraints: {container + "\ntopologySpreadConstraints: [{topologyKey: zone}]", false},
	rules.KeyPodSpecHostAliases:               {container + "\nhostAliases: [{ip: 127.0.0.1}]", false},
	rules.KeyPodSpecNodeSelector:              {container + "\nnodeSelector: {a: b}", false},
	rules.KeyPodSpecTolerations:               {container + "\ntolerations: [{key: spot}]", false},
	rules.KeyPodSpecFieldRef: {
		"containers: [{image: example.test/a, env: [{name: A, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]}]", false},
	rules.KeyPodSpecRuntimeClassName:        {container + "\nruntimeClassName: gvisor", false},
	rules.KeyPodSpecDNSPolicy:               {container + "\ndnsPolicy: Default", false},
	rules.KeyPodSpecDNSConfig:               {container + "\ndnsConfig: {}", false},
	rules.KeyPodSpecSecurityContext:         {container + "\nsecurityContext: {runAsUser: 1}", false},
	rules.KeyPodSpecShareProcessNamespace:   {container + "\nshareProcessNamespace: false", false},
	rules.KeyPodSpecHostIPC:                 {container + "\nhostIPC: true", false},
	rules.KeyPodSpecHostPID:                 {container + "\nhostPID: true", false},
	rules.KeyPodSpecHostNetwork:             {container + "\nhostNetwork: true", false},
	rules.KeyPodSpecPriorityClassName:       {container + "\npriorityClassName: high", false},
	rules.KeyPodSpecSchedulerName:           {container + "\nschedulerName: own", false},
	rules.KeyPodSpecInitContainers:          {container + "\ninitContainers: [{image: example.test/init}]", true},
	rules.KeyPodSpecPersistentVolumeClaim:   {mounted + "volumes: [{name: v, persistentVolumeClaim: {claimName: p, readOnly: true}}]", true},
	rules.KeyPodSpecPersistentVolumeWrite:   {mounted + "volumes: [{name: v, persistentVolumeClaim: {claimName: p}}]", true},
	rules.KeyPodSpecVolumesEmptyDir:         {mounted + "volumes: [{name: v, emptyDir: {}}]", true},
	rules.KeyPodSpecVolumesImage:            {mounted + "volumes: [{name: v, image: {reference: example.test/data}}]", true},
	rules.KeyPodSpecVolumesHostPath:         {mounted + "volumes: [{name: v, hostPath: {path: /}}]", true},
	rules.KeyPodSpecVolumesEphemeral:        {mounted + "volumes: [{name: v, ephemeral: {}}]", true},
	rules.KeyPodSpecVolumesCSI:              {mounted + "volumes: [{name: v, csi: {driver: example.test}}]", true},
	rules.KeyPodSpecVolumesMountPropagation: {strings.Replace(mounted, "readOnly: true", "readOnly: true, mountPropagation: None", 1) + "volumes: [{name: v, emptyDir: {}}]", false},
	rules.KeyContainerSpecAddCapabilities: {
		"containers: [{image: example.test/a, securityContext: {capabilities: {add: [NET_ADMIN]}}}]", false},
}

// forbidsNothing are the flags that change what is done, not what may be asked for.
var forbidsNothing = map[rules.FlagKey]bool{
	rules.KeyAutodetectHTTP2: true, rules.KeyTagHeaderBasedRouting: true, rules.KeySecurePodDefaults: true,
	rules.KeyQueueProxyMountPodInfo: true, rules.KeyQueueProxyResourceDefaults: true,
}

func TestEveryFlagRefusesWhatItForbidsAndNothingElse(t *testing.T) {
	for _, flag := range rules.FeatureTable {
		t.Run(string(flag.Key), func(t *testing.T) {
			ask, ok := asking[flag.Key]
			if ok == forbidsNothing[flag.Key] {
				t.Fatal("a flag is either in asking, with a pod that is refused without it, or in forbidsNothing")
			}
			if !ok {
				return
			}
			for _, word := range []string{"disabled", "allowed", "enabled"} {
				got := withFlag(t, flag.Key, word, ask.pod)
				passes := word == "enabled" || word == "allowed" && !ask.enabledOnly
				switch count := strings.Count(got, " to \"enabled\" in ConfigMap"); {
				case passes && strings.Contains(got, "refused:"):
					t.Errorf("%s: %s", word, got)
				case !passes && (count != 1 || !strings.Contains(got, "\nset "+string(flag.Key)+" to ")):
					t.Errorf("%s: not refused by this flag alone, with the way to set it: %s", word, got)
				}
			}
		})
	}
	if n := len(asking) + len(forbidsNothing); n != len(rules.FeatureTable) {
		t.Errorf("%d flags here, %d in rules.FeatureTable", n, len(rules.FeatureTable))
	}
}

// withFlag judges a Service with one flag at a word and all others that forbid something enabled.
func withFlag(t *testing.T, key rules.FlagKey, word, pod string) string {
	t.Helper()
	var manifest strings.Builder
	for other := range asking {
		if other != key {
			manifest.WriteString("# " + settings.FeaturesName + ": " + string(other) + "=enabled\n")
		}
	}
	manifest.WriteString("# " + settings.FeaturesName + ": " + string(key) + "=" + word + "\n")
	manifest.WriteString("apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: hello}\nspec:\n  template:\n    spec:\n")
	for line := range strings.Lines(pod) {
		manifest.WriteString("      " + line)
	}
	return judged(t, manifest.String())
}
