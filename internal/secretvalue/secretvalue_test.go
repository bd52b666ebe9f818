package secretvalue

import (
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func secret(name, content string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: name}, Data: map[string][]byte{"key": []byte(content)}}
}

func TestTheValueFollowsItsSecretAndNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(secret("other", "wrong"))
		value, err := Watch(t.Context(), client, "system", "mine")
		if err != nil {
			t.Fatal(err)
		}
		secrets := client.CoreV1().Secrets("system")
		expect := func(want string) {
			t.Helper()
			synctest.Wait()
			if got := string(value.Load()["key"]); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		expect("")
		if _, err := secrets.Create(t.Context(), secret("mine", "one"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		expect("one")
		if _, err := secrets.Update(t.Context(), secret("mine", "two"), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		expect("two")
		if err := secrets.Delete(t.Context(), "other", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		expect("two")
		if err := secrets.Delete(t.Context(), "mine", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		expect("")
	})
}
