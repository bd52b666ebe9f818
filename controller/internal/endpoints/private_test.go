package endpoints

import (
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/settings"
)

func TestAPrivateServiceGoesWithItsDeploymentOnly(t *testing.T) {
	type facts struct {
		pa         *autoscalingv1alpha1.PodAutoscaler
		deployment bool
		private    []*discoveryv1.EndpointSlice
		settings   *settings.Snapshot
	}
	for what, c := range map[string]struct {
		change func(*facts)
		needs  bool
	}{
		"the Deployment is put away":   {func(*facts) {}, false},
		"a list without pods is left":  {func(f *facts) { f.private = []*discoveryv1.EndpointSlice{{}} }, false},
		"there is a Deployment":        {func(f *facts) { f.deployment = true }, true},
		"no Deployment is put away":    {func(f *facts) { f.settings.Deployment.RetentionPeriod = 0 }, true},
		"pods are addressed by it":     {func(f *facts) { f.settings.Network.EnableMeshPodAddressability = true }, true},
		"another autoscaler scales it": {func(f *facts) { f.pa.Annotations = map[string]string{names.ClassAnnotation: names.ClassHPA} }, true},
		"it was never up":              {func(f *facts) { f.pa.Status.MarkScaleTargetNotInitialized("", "") }, true},
		"a pod is wanted":              {func(f *facts) { f.pa.Status.DesiredScale = ptr.To(int32(1)) }, true},
		"nothing was decided yet":      {func(f *facts) { f.pa.Status.DesiredScale = nil }, true},
		"a pod is ready":               {func(f *facts) { f.pa.Status.ActualScale = ptr.To(int32(1)) }, true},
		"a pod is asleep":              {func(f *facts) { f.pa.Status.AsleepReplicas = ptr.To(int32(1)) }, true},
		"a pod is listed": {func(f *facts) {
			f.private = []*discoveryv1.EndpointSlice{{Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.1"}}}}}
		}, true},
	} {
		f := &facts{pa: podAutoscaler(autoscalingv1alpha1.ProtocolHTTP1), settings: settings.Default()}
		f.settings.Deployment.RetentionPeriod = time.Hour
		f.pa.Status.InitializeConditions()
		f.pa.Status.MarkScaleTargetInitialized()
		f.pa.Status.DesiredScale, f.pa.Status.ActualScale = ptr.To(int32(0)), ptr.To(int32(0))
		c.change(f)
		if got := needsPrivate(f.pa, f.deployment, f.private, f.settings); got != c.needs {
			t.Errorf("%s: needed: %v", what, got)
		}
	}
}
