//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
)

var warm = map[string]string{"autoscaling.knative.dev/min-scale": "1"}

// As in an upgrade, all components are replaced at once, and two settings of the sidecar change.
func TestUpgradingEbbLosesNoRequestAndRestartsNoUserPod(t *testing.T) {
	s := beginAlone(t, 4*time.Minute)
	url := s.ready("busy", service{name: "busy", annotations: warm}.manifest())
	asleep := s.readyAtZero("asleep", service{name: "asleep"}.manifest())
	before := s.identities("busy")
	client := s.client()
	prober := probe.Start(client, url, 50*time.Millisecond)

	s.config("config-deployment", map[string]string{"queue-sidecar-image": "dev.local/ebb/queue-proxy:dev", "queue-sidecar-cpu-request": "26m"})
	for _, program := range s.Programs {
		s.restart(cluster.System, program)
	}
	if failed := probe.Failed(probe.Burst(s.ctx, client, asleep, 3)); len(failed) > 0 {
		t.Errorf("at zero, during the upgrade: %v", failed)
	}
	for _, program := range s.Programs {
		s.rolledOut(cluster.System, program)
	}
	s.awaitZero("asleep")
	s.until("the revision at zero has the new sidecar", func() (bool, string, error) {
		deployment, err := s.deploymentOf("asleep")
		if err != nil {
			return false, err.Error(), nil
		}
		image, request := sidecarOf(deployment.Spec.Template.Spec)
		return image == "dev.local/ebb/queue-proxy:dev" && request == "26m", image + " " + request, nil
	})
	if failed := probe.Failed(probe.Burst(s.ctx, client, asleep, 3)); len(failed) > 0 {
		t.Errorf("at zero, with the new sidecar: %v", failed)
	}
	if err := prober.StopAfter(s.ctx, 100).Err(100); err != nil {
		t.Errorf("during the upgrade: %v", err)
	}
	if after := s.identities("busy"); after != before {
		t.Errorf("the user's pods were %s before and are %s after", before, after)
	}
}

func TestWhatIsStoredServesWakesAndScalesWithoutTheWebhook(t *testing.T) {
	s := beginAlone(t, 3*time.Minute)
	s.needsAProcessOfEach()
	url := s.readyAtZero("kept", service{name: "kept", concurrency: 1}.manifest())
	scale := func(ctx context.Context, replicas int) error {
		patch := fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas)
		_, err := s.Kube.AppsV1().Deployments(cluster.System).Patch(ctx, "webhook", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	if err := scale(s.ctx, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := scale(ctx, 1); err != nil {
			t.Error(err)
		}
	})
	other := service{name: "other"}.manifest()
	s.until("the webhook is down", func() (bool, string, error) {
		err := s.Apply(s.ctx, s.namespace, other)
		return err != nil && strings.Contains(err.Error(), "webhook"), fmt.Sprint(err), nil
	})
	most := s.watchPods("kept")
	if failed := probe.Failed(probe.Burst(s.ctx, s.client(), url+"?sleep=2000", 6)); len(failed) > 0 {
		t.Errorf("without the webhook: %v", failed)
	}
	if pods := most(); pods < 2 {
		t.Errorf("for six requests of two seconds, one at a time in a pod, there were %d pods", pods)
	}
	err := s.Apply(s.ctx, s.namespace, service{name: "kept", concurrency: 2}.manifest())
	if err == nil || !strings.Contains(err.Error(), `failed calling webhook`) {
		t.Errorf("apply without the webhook: %v", err)
	}
	if err := scale(s.ctx, 1); err != nil {
		t.Fatal(err)
	}
	s.until("the webhook is up again", func() (bool, string, error) {
		err := s.Apply(s.ctx, s.namespace, service{name: "kept", concurrency: 2}.manifest())
		return err == nil, fmt.Sprint(err), nil
	})
	if _, err := s.AwaitReady(s.ctx, s.namespace, "kept"); err != nil {
		t.Error(err)
	}
}

func TestARolloutRestartReplacesThePodsWithNoFailedRequest(t *testing.T) {
	s := begin(t, 3*time.Minute)
	url := s.ready("again", service{name: "again", annotations: warm}.manifest())
	before := s.identities("again")
	prober := probe.Start(s.client(), url, 50*time.Millisecond)
	deployment, err := s.deploymentOf("again")
	if err != nil {
		t.Fatal(err)
	}
	s.restart(s.namespace, deployment.Name)
	s.rolledOut(s.namespace, deployment.Name)
	if after := s.identities("again"); after == before {
		t.Errorf("the pods are still %s", after)
	}
	if err := prober.StopAfter(s.ctx, 40).Err(40); err != nil {
		t.Errorf("while the pods were replaced: %v", err)
	}
}

// restart is `kubectl rollout restart`.
func (s *story) restart(namespace, deployment string) {
	s.Helper()
	patch := fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":%q}}}}}`, time.Now().Format(time.RFC3339Nano))
	if _, err := s.Kube.AppsV1().Deployments(namespace).Patch(s.ctx, deployment, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		s.Fatal(err)
	}
}

// rolledOut waits as `kubectl rollout status` does.
func (s *story) rolledOut(namespace, name string) {
	s.Helper()
	if err := s.AwaitDeployment(s.ctx, namespace, name); err != nil {
		s.Fatal(err)
	}
}

// deploymentOf finds the Deployment of a Service's only revision.
func (s *story) deploymentOf(service string) (appsv1.Deployment, error) {
	list, err := s.Kube.AppsV1().Deployments(s.namespace).List(s.ctx, metav1.ListOptions{LabelSelector: "serving.knative.dev/service=" + service})
	if err != nil {
		return appsv1.Deployment{}, err
	}
	if len(list.Items) != 1 {
		return appsv1.Deployment{}, fmt.Errorf("the Service %s has %d Deployments", service, len(list.Items))
	}
	return list.Items[0], nil
}

func sidecarOf(pod corev1.PodSpec) (image, cpuRequest string) {
	for _, container := range pod.Containers {
		if container.Name == "queue-proxy" {
			return container.Image, container.Resources.Requests.Cpu().String()
		}
	}
	return "", ""
}

// identities returns what identifies a Service's pods, including restarts.
func (s *story) identities(service string) string {
	s.Helper()
	pods, err := s.Pods(s.ctx, s.namespace, service, false)
	if err != nil {
		s.Fatal(err)
	}
	var all []string
	for _, pod := range pods {
		restarts := int32(0)
		for _, container := range pod.Status.ContainerStatuses {
			restarts += container.RestartCount
		}
		all = append(all, fmt.Sprintf("%s (%s, %d restarts)", pod.Name, pod.UID, restarts))
	}
	return strings.Join(all, ", ")
}
