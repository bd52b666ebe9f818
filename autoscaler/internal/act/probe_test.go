package act

import (
	"errors"
	"net"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"ebb.dev/ebb/autoscaler/zero"
)

// Where hosts may rest, a revision may have no public Service. The API server says so, not the
// cluster's DNS alone.
func TestARevisionWithoutAServiceIsReachedThroughActivatorsOnly(t *testing.T) {
	unknown := &net.OpError{Op: "dial", Err: &net.DNSError{IsNotFound: true}}
	public := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	for what, c := range map[string]struct {
		fail  error
		kube  *fake.Clientset
		rests bool
		want  zero.Probe
	}{
		"there is none":                    {unknown, fake.NewClientset(), true, zero.ProbedActivator},
		"DNS does not know it yet":         {unknown, fake.NewClientset(public), true, zero.ProbedOther},
		"it is missing, and no host rests": {unknown, fake.NewClientset(), false, zero.ProbedOther},
		"DNS does not answer":              {&net.DNSError{IsTimeout: true}, fake.NewClientset(), true, zero.ProbedOther},
		"the API server does not answer":   {unknown, refusing(), true, zero.ProbedOther},
	} {
		t.Run(what, func(t *testing.T) {
			p := NewProber("cluster.local")
			p.HTTP1 = answers(func(*http.Request) (*http.Response, error) { return nil, c.fail })
			p.Without = WithoutService(c.kube, func() bool { return c.rests })
			done := make(chan zero.Probe, 1)
			p.Probe(key, false, func(a zero.Probe) { done <- a })
			if got := <-done; got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func refusing() *fake.Clientset {
	kube := fake.NewClientset()
	kube.PrependReactor("get", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewInternalError(errors.New("no quorum"))
	})
	return kube
}
