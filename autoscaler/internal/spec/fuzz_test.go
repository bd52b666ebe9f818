package spec

import (
	"testing"

	"knative.dev/pkg/apis"

	"ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/settings"
)

// FuzzWhatIsAdmittedIsNotIgnored holds admission and the autoscaler to each other: the autoscaler
// uses every annotation about standby that admission lets in, on a template or on a Service.
func FuzzWhatIsAdmittedIsNotIgnored(f *testing.F) {
	f.Add("auto", "frozen", "90m", "2", "TZ=Europe/Berlin 0 8 * * 1-5 for 10h = 3", "0 8 * * * for 1h = 1; 0 20 * * * for 1h = 1")
	f.Add("3", "compressed", "auto", "0", "*/5 * * * * for 1m = 0", "x")
	f.Add("off", "warm", "4h", "-1", "TZ=UTC", ";")
	c := settings.Default().Rules()
	f.Fuzz(func(t *testing.T, standby, level, length, buffer, sleep, least string) {
		pa := &v1alpha1.PodAutoscaler{}
		pa.Annotations = map[string]string{
			names.StandbyAnnotation: standby, names.StandbyLevelAnnotation: level, names.StandbyForAnnotation: length,
			names.ScaleBufferAnnotation: buffer, names.StandbyScheduleAnnotation: sleep, names.MinScaleScheduleAnnotation: least,
		}
		schedules := map[string]string{names.StandbyScheduleAnnotation: sleep, names.MinScaleScheduleAnnotation: least}
		if names.ValidateLive(schedules) == nil {
			if _, errs := names.ScalingOf(schedules, c); errs != nil {
				t.Errorf("let in on a Service: %v", errs)
			}
		}
		if names.ValidateScaling(pa.Annotations, c).Filter(apis.ErrorLevel) != nil {
			return
		}
		if _, problems := Resolve(pa, c); len(problems) > 0 {
			t.Errorf("let in, and then %q", problems)
		}
	})
}
