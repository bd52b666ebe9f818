package revision

import (
	"encoding/json"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/rules"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/settings"
)

// Charts write it where their values say nothing.
func TestAnEmptyAffinityIsNone(t *testing.T) {
	rev, in := readCase(t, "testdata/no-volumes.in.yaml")
	rev.Spec.Affinity = &corev1.Affinity{}
	d, err := MakeDeployment(rev, 1, in)
	if err != nil {
		t.Fatal(err)
	}
	if a := d.Spec.Template.Spec.Affinity; a == nil || a.PodAntiAffinity == nil {
		t.Errorf("pods are not spread over nodes: %v", a)
	}
}

// Another node counts more than another zone, and what the user says of topology more than both.
func TestPodsAreSpreadOverNodesThenZones(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.PodSpec)
		want   []string
	}{
		"by default":                  {func(*corev1.PodSpec) {}, []string{corev1.LabelHostname, corev1.LabelTopologyZone}},
		"with constraints of its own": {func(p *corev1.PodSpec) { p.TopologySpreadConstraints = make([]corev1.TopologySpreadConstraint, 1) }, []string{corev1.LabelHostname}},
		"with an affinity of its own": {func(p *corev1.PodSpec) { p.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}} }, nil},
	} {
		rev, in := readCase(t, "testdata/no-volumes.in.yaml")
		c.change(&rev.Spec.PodSpec)
		d, err := MakeDeployment(rev, 1, in)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		if a := d.Spec.Template.Spec.Affinity.PodAntiAffinity; a != nil {
			weight := int32(101)
			for _, term := range a.PreferredDuringSchedulingIgnoredDuringExecution {
				if term.Weight >= weight {
					t.Errorf("%s: weight %d after %d", name, term.Weight, weight)
				}
				weight, got = term.Weight, append(got, term.PodAffinityTerm.TopologyKey)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: spread over %v, want %v", name, got, c.want)
		}
	}
}

// The release that learns of zones finds pods that were not spread over them.
func TestAnotherAffinityRestartsNoPod(t *testing.T) {
	rev, in := readCase(t, "testdata/plain.in.yaml")
	want, err := MakeDeployment(rev, 3, in)
	if err != nil {
		t.Fatal(err)
	}
	earlier := want.DeepCopy()
	terms := func(d *appsv1.Deployment) *[]corev1.WeightedPodAffinityTerm {
		return &d.Spec.Template.Spec.Affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	}
	*terms(earlier) = (*terms(earlier))[:1]
	earlier.Labels[names.DeploymentHashLabel] = "another"
	for runs, n := range map[int32]int{3: 1, 0: 2} {
		have := earlier.DeepCopy()
		have.Spec.Replicas, have.Status.Replicas = &runs, runs
		mergeDeployment(have, want)
		if got := len(*terms(have)); got != n {
			t.Errorf("with %d pods: %d terms, want %d", runs, got, n)
		}
	}
}

func TestOnlyTheUsersOwnChangesReachRunningPods(t *testing.T) {
	deployment := func(whole, own string, replicas, running int32) *appsv1.Deployment {
		return &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{names.DeploymentHashLabel: whole},
				Annotations: map[string]string{names.RevisionHashAnnotation: own, names.SystemTLSAnnotation: "true"}},
			Spec:   appsv1.DeploymentSpec{Replicas: &replicas},
			Status: appsv1.DeploymentStatus{Replicas: running},
		}
	}
	want := deployment("new", "own", 1, 1)
	before := deployment("old", "own", 3, 3)
	delete(before.Annotations, names.SystemTLSAnnotation)
	want.Annotations[names.PodKeyAnnotation] = "next"
	with := func(key string) *appsv1.Deployment {
		d := deployment("old", "own", 3, 3)
		d.Spec.Template.Annotations = map[string]string{names.PodKeyAnnotation: key}
		return d
	}
	for _, tt := range []struct {
		why  string
		have *appsv1.Deployment
		due  bool
	}{
		{"nothing differs", deployment("new", "own", 1, 1), false},
		{"nothing differs at zero", deployment("new", "own", 0, 0), false},
		{"the Revision differs", deployment("old", "other", 3, 3), true},
		{"pods run that serve no TLS, and it was switched on", before, true},
		{"pods run that cannot read another key, and it was rotated", with("previous"), true},
		{"pods run that have the key", with("next"), false},
		{"only Ebb's part differs, pods run", deployment("old", "own", 3, 3), false},
		{"only Ebb's part differs, the last pod is leaving", deployment("old", "own", 0, 1), false},
		{"only Ebb's part differs, pods are on their way", deployment("old", "own", 1, 0), false},
		{"only Ebb's part differs, at zero", deployment("old", "own", 0, 0), true},
		{"Knative made it, pods run", deployment("", "", 3, 3), false},
		{"Knative made it, at zero", deployment("", "", 0, 0), true},
	} {
		t.Run(tt.why, func(t *testing.T) {
			if got := due(tt.have, want); got != tt.due {
				t.Errorf("due %v, want %v", got, tt.due)
			}
		})
	}
}

// proxyOf is the container queue-proxy of a Deployment.
func proxyOf(t *testing.T, d *appsv1.Deployment) *corev1.Container {
	t.Helper()
	all := d.Spec.Template.Spec.Containers
	i := slices.IndexFunc(all, func(c corev1.Container) bool { return c.Name == names.QueueProxyContainer })
	if i < 0 {
		t.Fatalf("Deployment %s has no container %s", d.Name, names.QueueProxyContainer)
	}
	return &all[i]
}

// Earlier releases listed queue-proxy first. Their Deployments keep that order until they have no
// pods.
func TestAnotherOrderOfContainersRestartsNoPod(t *testing.T) {
	rev, in := readCase(t, "testdata/containers-volumes-exec.in.yaml")
	want, err := MakeDeployment(rev, 3, in)
	if err != nil {
		t.Fatal(err)
	}
	now := containerNames(want)
	earlier := want.DeepCopy()
	all := earlier.Spec.Template.Spec.Containers
	earlier.Spec.Template.Spec.Containers = slices.Insert(slices.Clone(all[:len(all)-1]), 0, all[len(all)-1])
	earlier.Labels[names.DeploymentHashLabel] = "another"
	before := containerNames(earlier)
	if n := len(rev.Spec.Containers); now[n] != names.QueueProxyContainer || before[0] != names.QueueProxyContainer {
		t.Fatalf("containers %v now, and %v before", now, before)
	}
	for _, c := range []struct {
		why           string
		ordered, runs int32
		want          []string
	}{
		{"pods run", 3, 3, before},
		{"the first pod is on its way", 1, 0, before},
		{"the last pod is leaving", 0, 1, before},
		{"at zero", 0, 0, now},
	} {
		have := earlier.DeepCopy()
		have.Spec.Replicas, have.Status.Replicas = &c.ordered, c.runs
		mergeDeployment(have, want)
		if got := containerNames(have); !slices.Equal(got, c.want) {
			t.Errorf("%s: containers %v, want %v", c.why, got, c.want)
		}
		if *have.Spec.Replicas != c.ordered {
			t.Errorf("%s: %d replicas, want %d", c.why, *have.Spec.Replicas, c.ordered)
		}
	}
}

func containerNames(d *appsv1.Deployment) (all []string) {
	for _, c := range d.Spec.Template.Spec.Containers {
		all = append(all, c.Name)
	}
	return all
}

func TestTheHashOfTheRevisionDoesNotKnowTheSettings(t *testing.T) {
	rev, in := readCase(t, "testdata/plain.in.yaml")
	before, err := MakeDeployment(rev, 1, in)
	if err != nil {
		t.Fatal(err)
	}
	changed := *in.Settings
	changed.Deployment.QueueSidecarImage = "another:2"
	changed.Observability.EnableRequestLog = true
	in.Settings = &changed
	after, err := MakeDeployment(rev, 1, in)
	if err != nil {
		t.Fatal(err)
	}
	if before.Annotations[names.RevisionHashAnnotation] != after.Annotations[names.RevisionHashAnnotation] {
		t.Error("a setting changed the Revision's own hash, so it would restart pods")
	}
	if before.Labels[names.DeploymentHashLabel] == after.Labels[names.DeploymentHashLabel] {
		t.Error("a setting did not change the hash of the whole, so it would never arrive")
	}
	rev.Spec.Containers[0].Image = "x:2"
	if own := ownHash(rev); own == before.Annotations[names.RevisionHashAnnotation] {
		t.Error("another image did not change the Revision's own hash")
	}
	rev, _ = readCase(t, "testdata/plain.in.yaml")
	rev.Annotations[names.MinScaleAnnotation] = "5"
	rev.Labels[names.RoutingStateLabel] = string(names.RoutingReserve)
	if own := ownHash(rev); own != before.Annotations[names.RevisionHashAnnotation] {
		t.Error("scale or routing changed the Revision's own hash, so it would restart pods")
	}
}

func TestSidecarResources(t *testing.T) {
	user := corev1.Container{Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("1Gi")},
		Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}
	base := settings.Default()
	defaults := settings.Default()
	defaults.Features[rules.KeyQueueProxyResourceDefaults] = rules.Enabled
	for _, tt := range []struct {
		why                                            string
		s                                              *settings.Snapshot
		notes                                          map[string]string
		cpuRequest, cpuLimit, memoryRequest, memoryMax string
	}{
		{"as built in", base, nil, "25m", "0", "0", "0"},
		{"with the feature", defaults, nil, "25m", "1", "400Mi", "800Mi"},
		{"ten percent, within the bounds", base, map[string]string{names.SidecarResourcePercentAnnotation: "10"}, "100m", "100m", "107374182", "0"},
		{"a little percent, lifted to the least", base, map[string]string{names.SidecarResourcePercentAnnotation: "0.2"}, "25m", "40m", "50Mi", "0"},
		{"all percent, cut to the most", base, map[string]string{names.SidecarResourcePercentAnnotation: "100"}, "100m", "500m", "200Mi", "0"},
		{"the older key", base, map[string]string{names.SidecarResourcePercentAnnotationAlt: "100"}, "100m", "500m", "200Mi", "0"},
		{"an explicit word wins", base, map[string]string{names.SidecarResourcePercentAnnotation: "10",
			names.SidecarCPURequestAnnotation: "7m", names.SidecarMemoryLimitAnnotation: "1Gi"}, "7m", "100m", "107374182", "1Gi"},
		{"nonsense that got past admission is no crash", base, map[string]string{names.SidecarResourcePercentAnnotation: "NaN",
			names.SidecarCPURequestAnnotation: "lots"}, "25m", "0", "0", "0"},
	} {
		t.Run(tt.why, func(t *testing.T) {
			m, _ := names.Of(tt.notes, tt.s.Rules())
			r := sidecarResources(m.Sidecar, user, tt.s)
			for _, check := range []struct {
				what string
				got  resource.Quantity
				want string
			}{
				{"CPU request", r.Requests[corev1.ResourceCPU], tt.cpuRequest},
				{"CPU limit", r.Limits[corev1.ResourceCPU], tt.cpuLimit},
				{"memory request", r.Requests[corev1.ResourceMemory], tt.memoryRequest},
				{"memory limit", r.Limits[corev1.ResourceMemory], tt.memoryMax},
			} {
				if check.got.Cmp(resource.MustParse(check.want)) != 0 {
					t.Errorf("%s is %s, want %s", check.what, check.got.String(), check.want)
				}
			}
		})
	}
}

func TestReachability(t *testing.T) {
	for _, tt := range []struct {
		state        names.RoutingState
		neverStarted bool
		want         autoscalingv1alpha1.Reachability
	}{
		{names.RoutingActive, false, autoscalingv1alpha1.ReachabilityReachable},
		{names.RoutingActive, true, autoscalingv1alpha1.ReachabilityUnreachable},
		{names.RoutingPending, false, autoscalingv1alpha1.ReachabilityUnknown},
		{names.RoutingPending, true, autoscalingv1alpha1.ReachabilityUnreachable},
		{names.RoutingReserve, false, autoscalingv1alpha1.ReachabilityUnreachable},
	} {
		rev := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{names.RoutingStateLabel: string(tt.state)}}}
		if got := reachability(rev, tt.neverStarted); got != tt.want {
			t.Errorf("%s, never started %v: %q, want %q", tt.state, tt.neverStarted, got, tt.want)
		}
	}
}

// KServe's webhook copies queue-proxy's environment into its agent, which ends without a readiness
// probe that is one object.
func TestTheAgentOfKServeFindsItsEnvironment(t *testing.T) {
	rev, in := readCase(t, "testdata/kserve-predictor.in.yaml")
	changed := *in.Settings
	changed.Logging.Raw = `{"level": "debug"}`
	in.Settings = &changed
	d, err := MakeDeployment(rev, 1, in)
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]string{}
	for _, e := range proxyOf(t, d).Env {
		values[e.Name] = e.Value
	}
	for _, name := range []string{"CONTAINER_CONCURRENCY", "QUEUE_SERVING_PORT", "USER_PORT", "REVISION_TIMEOUT_SECONDS", "SERVING_LOGGING_LEVEL"} {
		if values[name] == "" {
			t.Errorf("%s is not there", name)
		}
	}
	var probe corev1.Probe
	if err := json.Unmarshal([]byte(values["SERVING_READINESS_PROBE"]), &probe); err != nil || probe.HTTPGet == nil && probe.TCPSocket == nil && probe.GRPC == nil {
		t.Errorf("the probe is %q: %v", values["SERVING_READINESS_PROBE"], err)
	}
	if values["SERVING_LOGGING_CONFIG"] != changed.Logging.Raw {
		t.Errorf("the logging config is %q", values["SERVING_LOGGING_CONFIG"])
	}
}
