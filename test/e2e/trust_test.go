//go:build e2e

package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/wire"
)

// as returns a client that acts as a ServiceAccount.
func (s *story) as(namespace, account string) kubernetes.Interface {
	s.Helper()
	config := rest.CopyConfig(s.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + namespace + ":" + account,
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"}}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		s.Fatal(err)
	}
	return client
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
