//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"k8s.io/utils/ptr"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/wire"
)

// as returns a client that acts as a ServiceAccount.
func (s *story) as(namespace, account string, wrappers ...transport.WrapperFunc) kubernetes.Interface {
	s.Helper()
	config := rest.CopyConfig(s.Config)
	for _, wrap := range wrappers {
		config.Wrap(wrap)
	}
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + namespace + ":" + account,
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"}}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		s.Fatal(err)
	}
	return client
}

// with returns a client with a token of a component, as one that was stolen.
func (s *story) with(account string) kubernetes.Interface {
	s.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(600))}}
	token, err := s.Kube.CoreV1().ServiceAccounts("knative-serving").CreateToken(s.ctx, account, request, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	config := rest.AnonymousClientConfig(s.Config)
	config.BearerToken = token.Status.Token
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		s.Fatal(err)
	}
	return client
}

// headers keeps the headers of the last response.
type headers struct {
	http.RoundTripper
	last http.Header
}

func (h *headers) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := h.RoundTripper.RoundTrip(r)
	if err == nil {
		h.last = response.Header
	}
	return response, err
}

func TestAScaleDoesNotQueueBehindOtherRequests(t *testing.T) {
	s := begin(t, 2*time.Minute)
	s.ready("ours", service{name: "ours"}.manifest())
	schema, err := s.Kube.FlowcontrolV1().FlowSchemas().Get(s.ctx, "ebb-scales", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, account := range []string{"autoscaler", "controller"} {
		seen := &headers{}
		client := s.as(names.SystemNamespace, account, func(next http.RoundTripper) http.RoundTripper {
			seen.RoundTripper = next
			return seen
		})
		_, err := client.AppsV1().Deployments(s.namespace).Patch(s.ctx, "ours-00001-deployment", types.JSONPatchType,
			[]byte(`[{"op":"add","path":"/spec/replicas","value":1}]`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, "scale")
		if err != nil {
			t.Fatal(err)
		}
		if got := seen.last.Get("X-Kubernetes-Pf-Flowschema-Uid"); got != string(schema.UID) {
			t.Errorf("a scale by %s went by the flow schema with UID %q, want that of %s, %q", account, got, schema.Name, schema.UID)
		}
	}
}

// What a component does itself the other tests show: they would fail if a policy refused it.
func TestAStolenTokenOfAComponentIsNotTheCluster(t *testing.T) {
	s := begin(t, 2*time.Minute)
	s.ready("ours", service{name: "ours", annotations: map[string]string{"autoscaling.knative.dev/min-scale": "1"}}.manifest())
	dry := []string{metav1.DryRunAll}
	autoscaler, webhook, controller := s.with("autoscaler"), s.with("webhook"), s.with("controller")
	system, err := s.Kube.CoreV1().Pods("kube-system").List(s.ctx, metav1.ListOptions{Limit: 1})
	if err != nil || len(system.Items) == 0 {
		t.Fatalf("no pod in kube-system: %v", err)
	}
	ours, err := s.Kube.CoreV1().Pods(s.namespace).List(s.ctx, metav1.ListOptions{Limit: 1, LabelSelector: "serving.knative.dev/revision"})
	if err != nil || len(ours.Items) == 0 {
		t.Fatalf("no pod of a revision: %v", err)
	}
	patch := func(pod *corev1.Pod, text string, sub ...string) error {
		_, err := autoscaler.CoreV1().Pods(pod.Namespace).Patch(s.ctx, pod.Name, types.StrategicMergePatchType, []byte(text), metav1.PatchOptions{DryRun: dry}, sub...)
		return err
	}
	image := func(pod *corev1.Pod) string {
		return fmt.Sprintf(`{"spec":{"containers":[{"name":%q,"image":"evil.example/root"}]}}`, pod.Spec.Containers[0].Name)
	}
	resize := func(pod *corev1.Pod) string {
		return fmt.Sprintf(`{"spec":{"containers":[{"name":%q,"resources":{"requests":{"cpu":"1m"}}}]}}`, pod.Spec.Containers[0].Name)
	}
	cost := `{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":"-1"}}}`
	plain := func(name string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "example.invalid/none"}}}}
	}
	scale := []byte(`{"spec":{"replicas":0}}`)
	for name, row := range map[string]struct {
		do     func() error
		denied bool
	}{
		"the autoscaler changes an image in kube-system": {func() error { return patch(&system.Items[0], image(&system.Items[0])) }, true},
		"the autoscaler changes an image of a revision":  {func() error { return patch(&ours.Items[0], image(&ours.Items[0])) }, true},
		"the autoscaler annotates in kube-system":        {func() error { return patch(&system.Items[0], cost) }, true},
		"the autoscaler resizes in kube-system":          {func() error { return patch(&system.Items[0], resize(&system.Items[0]), "resize") }, true},
		"the autoscaler annotates a pod of a revision":   {func() error { return patch(&ours.Items[0], cost) }, false},
		"the autoscaler scales a component": {func() error {
			_, err := autoscaler.AppsV1().Deployments("knative-serving").Patch(s.ctx, "webhook", types.MergePatchType, scale, metav1.PatchOptions{DryRun: dry}, "scale")
			return err
		}, true},
		"the autoscaler makes a Secret with a token": {func() error {
			_, err := autoscaler.CoreV1().Secrets("knative-serving").Create(s.ctx, &corev1.Secret{Type: corev1.SecretTypeServiceAccountToken,
				ObjectMeta: metav1.ObjectMeta{Name: "stolen", Annotations: map[string]string{corev1.ServiceAccountNameKey: "controller"}}},
				metav1.CreateOptions{DryRun: dry})
			return err
		}, true},
		"the webhook creates a pod": {func() error {
			_, err := webhook.CoreV1().Pods(s.namespace).Create(s.ctx, plain("stolen"), metav1.CreateOptions{})
			return err
		}, true},
		"the webhook tries a pod": {func() error {
			_, err := webhook.CoreV1().Pods(s.namespace).Create(s.ctx, plain("tried"), metav1.CreateOptions{DryRun: dry})
			return err
		}, false},
		"the controller changes a setting": {func() error {
			settings, err := s.Kube.CoreV1().ConfigMaps("knative-serving").Get(s.ctx, "config-features", metav1.GetOptions{})
			if err == nil {
				settings.Annotations = map[string]string{"stolen": "true"}
				_, err = controller.CoreV1().ConfigMaps("knative-serving").Update(s.ctx, settings, metav1.UpdateOptions{DryRun: dry})
			}
			return err
		}, true},
		"the controller deletes a Service of others": {func() error {
			return controller.CoreV1().Services("knative-serving").Delete(s.ctx, "webhook", metav1.DeleteOptions{DryRun: dry})
		}, true},
	} {
		err := row.do()
		if denied := err != nil && strings.Contains(err.Error(), "of Ebb") || err != nil && strings.Contains(err.Error(), "Ebb scales"); denied != row.denied || !denied && err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWhoMayOnlyViewANamespaceGetsNoToken(t *testing.T) {
	s := begin(t, 2*time.Minute)
	s.ready("viewed", service{name: "viewed", annotations: map[string]string{"autoscaling.knative.dev/min-scale": "1"}}.manifest())
	binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "viewer", Namespace: s.namespace},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "viewer", Namespace: s.namespace}}}
	if _, err := s.Kube.RbacV1().RoleBindings(s.namespace).Create(s.ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	viewer := s.as(s.namespace, "viewer")
	var pods *corev1.PodList
	s.until("the viewer may list pods", func() (bool, string, error) {
		var err error
		if pods, err = viewer.CoreV1().Pods(s.namespace).List(s.ctx, metav1.ListOptions{}); apierrors.IsForbidden(err) {
			return false, err.Error(), nil
		}
		return err == nil && len(pods.Items) > 0, "", err
	})
	secret, err := s.Kube.CoreV1().Secrets(s.namespace).Get(s.ctx, names.PodSecret, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	key := secret.Data[wire.TokenSecretKey]
	text, err := json.Marshal(pods)
	if err != nil {
		t.Fatal(err)
	}
	if len(key) == 0 || strings.Contains(string(text), string(key)) || strings.Contains(string(text), wire.PodToken(key, pods.Items[0].Labels["serving.knative.dev/revision"])) {
		t.Errorf("the pods that the viewer reads hold the key of %d bytes, or a token", len(key))
	}
	if _, err := viewer.CoreV1().Secrets(s.namespace).Get(s.ctx, names.PodSecret, metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the viewer reads the Secret: %v", err)
	}
}

// A Secret with the token of any ServiceAccount would be the whole cluster.
func TestTheControllerCreatesOneKindOfSecret(t *testing.T) {
	s := begin(t, time.Minute)
	controller := s.as("knative-serving", "controller").CoreV1().Secrets(s.namespace)
	create := func(name string, kind corev1.SecretType) error {
		_, err := controller.Create(s.ctx, &corev1.Secret{Type: kind, ObjectMeta: metav1.ObjectMeta{Name: name,
			Annotations: map[string]string{corev1.ServiceAccountNameKey: "default"}}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	if err := create("stolen", corev1.SecretTypeServiceAccountToken); err == nil || !strings.Contains(err.Error(), "creates no Secret but ebb-queue-proxy") {
		t.Errorf("the token of a ServiceAccount: %v", err)
	}
	if err := create(names.PodSecret, corev1.SecretTypeServiceAccountToken); err == nil || !strings.Contains(err.Error(), "creates no Secret but ebb-queue-proxy") {
		t.Errorf("the token of a ServiceAccount under the name of the key: %v", err)
	}
	if err := create(names.PodSecret, corev1.SecretTypeOpaque); err != nil {
		t.Errorf("the key of the namespace's pods: %v", err)
	}
}
