package revision

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/test/golden"
)

// situation is what Kubernetes says of a pod that does not come up.
type situation struct {
	Cause      string                   `json:"cause"`
	Template   corev1.PodSpec           `json:"template"`
	Pod        *corev1.Pod              `json:"pod"`
	Events     []corev1.Event           `json:"events"`
	Claim      []corev1.Event           `json:"claim"`
	Deployment *appsv1.DeploymentStatus `json:"deployment"`
}

func situations(t *testing.T) (all []situation) {
	text, err := os.ReadFile("testdata/troubles.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// What kubelet itself has not read yet says nothing of the pod, and hides nothing that does.
func TestAKubeletThatIsBehindIsNoTrouble(t *testing.T) {
	mount := func(why string) corev1.Event {
		return corev1.Event{Reason: "FailedMount", Message: `MountVolume.SetUp failed for volume "a" : ` + why}
	}
	behind := []corev1.Event{
		mount("failed to sync configmap cache: timed out waiting for the condition"),
		mount("failed to sync secret cache: timed out waiting for the condition"),
		mount(`object "shop"/"kube-root-ca.crt" not registered`),
	}
	if found := readEvents(behind); !found.trouble.none() {
		t.Errorf("told %v", found.trouble)
	}
	missing := mount(`secret "login" not found`)
	if found := readEvents(append(behind, missing)); found.trouble.message != missing.Message {
		t.Errorf("told %v, want that the Secret is not there", found.trouble)
	}
}

// play returns the conditions of a revision ten seconds after its pod was made.
func (s *situation) play(t *testing.T, wasUp bool) *servingv1.Revision {
	began := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	now := began.Add(10 * time.Second)
	rev := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Name: "hello-00001", Namespace: "shop", UID: "rev"}}
	rev.Spec.PodSpec = *s.Template.DeepCopy()
	if len(rev.Spec.Containers) == 0 {
		rev.Spec.Containers = []corev1.Container{{Name: "user-container"}}
	}
	rev.Status.InitializeConditions()
	o := observation{template: &rev.Spec.PodSpec, autoscaler: &autoscalingv1alpha1.PodAutoscaler{},
		deployment: &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](1)}}}
	if wasUp {
		o.autoscaler.Annotations = map[string]string{names.InitializedAnnotation: "true"}
		o.autoscaler.Status.MarkActivating("Queued", "Requests are held until enough pods are ready.")
	}
	if s.Deployment != nil {
		o.deployment.Status = *s.Deployment
	}
	if s.Pod != nil {
		pod := s.Pod.DeepCopy()
		pod.Namespace, pod.Name, pod.UID, pod.CreationTimestamp = "shop", "hello", "pod", metav1.NewTime(began)
		o.pods = []*corev1.Pod{pod}
		if wasUp && !alive(pod) { // it replaced another, or it would say nothing
			before := pod.DeepCopy()
			before.Name, before.UID, before.CreationTimestamp = "before", "before", metav1.NewTime(began.Add(-time.Second))
			o.pods = append(o.pods, before)
		}
	}
	l := &looker{now: func() time.Time { return now }, tokens: flowcontrol.NewFakeAlwaysRateLimiter(), seen: map[types.UID]news{},
		list: func(_ context.Context, namespace string, of fields.Set) ([]corev1.Event, error) {
			switch {
			case namespace == "shop" && of["involvedObject.uid"] == "pod":
				return s.Events, nil
			case namespace == "shop" && of["involvedObject.kind"] == "PersistentVolumeClaim" && of["involvedObject.name"] == "models":
				return s.Claim, nil
			}
			return nil, fmt.Errorf("nobody asks for events of %v in %s", of, namespace)
		}}
	o.news, _ = l.look(t.Context(), rev, o)
	o.hint = hint(rev, hanging(o), o.news)
	setConditions(rev, o, settings.Default())
	return rev
}

const troubleshooting = "../../../docs/troubleshooting.md"

// The table is in docs/troubleshooting.md. Each pod that does not come up has one condition that
// says why, whether its revision was up before or not.
func TestEveryPodThatDoesNotComeUpHasAReason(t *testing.T) {
	var table strings.Builder
	table.WriteString("| What is wrong | Condition | Reason | Message |\n|---|---|---|---|\n")
	for _, s := range situations(t) {
		row := func(wasUp bool) (told string, condition string) {
			rev := s.play(t, wasUp)
			container, resources := rev.Status.GetCondition(servingv1.RevisionConditionContainerHealthy), rev.Status.GetCondition(servingv1.RevisionConditionResourcesAvailable)
			c := container
			switch {
			case container.IsFalse() == resources.IsFalse() && container.IsTrue():
				return rev.Status.GetCondition(servingv1.RevisionConditionActive).Message, "Unknown"
			case container.IsFalse() && resources.IsFalse():
				t.Errorf("%s: two conditions are False", s.Cause)
			case resources.IsFalse():
				c = resources
			}
			return fmt.Sprintf("%s is %s | `%s` | %s", c.Type, c.Status, c.Reason, strings.TrimSpace(c.Message)), string(c.Status)
		}
		told, status := row(false)
		again, _ := row(true)
		_, message, _ := strings.Cut(told, "` | ")
		if message == "" || !strings.Contains(again, message) {
			t.Errorf("%s: told %q, and of a revision that was up %q", s.Cause, told, again)
		}
		if status == "False" && again != told {
			t.Errorf("%s: told %q, and of a revision that was up %q", s.Cause, told, again)
		}
		fmt.Fprintf(&table, "| %s | %s |\n", s.Cause, told)
	}
	const begin, end = "<!-- the table of controller/internal/revision/testdata/troubles.yaml -->\n\n", "\n<!-- its end -->\n"
	golden.Between(t, troubleshooting, begin, end, table.String())
}
