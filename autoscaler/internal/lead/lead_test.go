package lead

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"ebb.dev/ebb/internal/lease"
	"ebb.dev/ebb/test/apiservertest"
)

const namespace = "knative-serving"

func newClient(t *testing.T, pods ...*corev1.Pod) kubernetes.Interface {
	_, config := apiservertest.New()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods {
		created, err := client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		created.Status = pod.Status
		if _, err := client.CoreV1().Pods(namespace).UpdateStatus(t.Context(), created, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return client
}

func scheme(buckets uint32) lease.Scheme {
	return lease.Scheme{Prefix: Prefix, Buckets: buckets, LeaseDuration: time.Minute, RenewDeadline: 40 * time.Second, RetryPeriod: 10 * time.Second}
}

func config(pod string, buckets uint32) Config {
	return Config{Namespace: namespace, Pod: pod, IP: "10.0.0." + pod[len(pod)-1:], Scheme: func() (lease.Scheme, <-chan struct{}) { return scheme(buckets), nil },
		Dead: func(node string) bool { return node == "dead" }}
}

func bucket(i int, n uint32) string { return lease.Scheme{Prefix: Prefix, Buckets: n}.Names()[i] }

type replica struct {
	*Election
	stop    context.CancelFunc
	stopped chan struct{}
	changes atomic.Int64
	left    atomic.Int64

	mutex sync.Mutex
	taken []string
}

func begin(t *testing.T, client kubernetes.Interface, pod string, buckets uint32) *replica {
	t.Helper()
	_, err := client.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{stopped: make(chan struct{})}
	r.Election = New(config(pod, buckets), client, slog.New(slog.DiscardHandler))
	hooks := Hooks{Changed: func() { r.changes.Add(1) }, Left: func() { r.left.Add(1) }, Taken: func(bucket, from string) {
		r.mutex.Lock()
		defer r.mutex.Unlock()
		r.taken = append(r.taken, bucket+" from "+from)
	}}
	var ctx context.Context
	ctx, r.stop = context.WithCancel(context.Background())
	go func() {
		defer close(r.stopped)
		if err := r.Run(ctx, hooks); err != nil {
			t.Error(err)
		}
	}()
	return r
}

func keys() []types.NamespacedName {
	var all []types.NamespacedName
	for i := range 200 {
		all = append(all, types.NamespacedName{Namespace: "default", Name: fmt.Sprintf("hello-%05d", i)})
	}
	return all
}

// decided checks that each revision has exactly one owner, on which all replicas agree.
func decided(t *testing.T, replicas ...*replica) {
	t.Helper()
	for _, key := range keys() {
		owners := 0
		for _, r := range replicas {
			if r.Owns(key) {
				owners++
			}
			if r.Owner(key) != replicas[0].Owner(key) || r.Owner(key) == "" {
				t.Fatalf("%s: %s says %q, %s says %q", key, replicas[0].config.Pod, replicas[0].Owner(key), r.config.Pod, r.Owner(key))
			}
		}
		if owners != 1 {
			t.Fatalf("%s has %d owners", key, owners)
		}
	}
}

func TestEachRevisionHasOneOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newClient(t)
		a := begin(t, client, "autoscaler-1", 3)
		b := begin(t, client, "autoscaler-2", 3)
		time.Sleep(10 * time.Second)
		decided(t, a, b)
		if _, err := client.CoordinationV1().Leases(namespace).Get(t.Context(), "autoscaler-bucket-02-of-03", metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
		// A replica that stops hands over; nobody waits for its leases to run out.
		had := a.Held()
		a.stop()
		<-a.stopped
		for _, key := range keys() {
			if a.Owns(key) {
				t.Fatalf("%s is still owned by a replica that stopped", key)
			}
		}
		time.Sleep(5 * time.Second)
		decided(t, b)
		if b.changes.Load() == 0 {
			t.Error("the new owner was not told")
		}
		// Which of the two began with which bucket is chance; what a had, b took over from it.
		want := []string{}
		for _, bucket := range had {
			want = append(want, bucket+" from 10.0.0.1")
		}
		b.mutex.Lock()
		if slices.Sort(b.taken); !slices.Equal(b.taken, want) {
			t.Errorf("taken over: %v, want %v", b.taken, want)
		}
		b.mutex.Unlock()
		if b.Buckets() != 3 || len(b.Held()) != 3 || len(a.Held()) != 0 {
			t.Errorf("held: %v and %v", a.Held(), b.Held())
		}
		b.stop()
		<-b.stopped
	})
}

func TestTheLeaseOfAPodThatIsGoneIsFreed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newClient(t)
		nobody, seconds, now := "autoscaler-9_10.0.0.9", int32(60), metav1.NowMicro()
		lease, err := client.CoordinationV1().Leases(namespace).Create(t.Context(), leaseOf(bucket(0, 1), nobody, seconds, now), metav1.CreateOptions{})
		if err != nil || lease == nil {
			t.Fatal(err)
		}
		a := begin(t, client, "autoscaler-1", 1)
		time.Sleep(5 * time.Second)
		decided(t, a)
		a.stop()
		<-a.stopped
	})
}

// After a restart of its node the pod has its name, another address, and another process.
func TestTheLeaseOfAPodsEarlierAddressIsFreed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newClient(t)
		_, err := client.CoordinationV1().Leases(namespace).Create(t.Context(), leaseOf(bucket(0, 1), "autoscaler-1_10.0.0.77", 60, metav1.NowMicro()), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		a := begin(t, client, "autoscaler-1", 1)
		pod, err := client.CoreV1().Pods(namespace).Get(t.Context(), "autoscaler-1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		pod.Status.PodIP = "10.0.0.1"
		if _, err := client.CoreV1().Pods(namespace).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		decided(t, a)
		a.stop()
		<-a.stopped
	})
}

func TestTheLeaseOfAPodThatExistsIsRespected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newClient(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "autoscaler-9"}, Status: corev1.PodStatus{PodIP: "10.0.0.9"}})
		_, err := client.CoordinationV1().Leases(namespace).Create(t.Context(), leaseOf(bucket(0, 1), "autoscaler-9_10.0.0.9", 60, metav1.NowMicro()), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		a := begin(t, client, "autoscaler-1", 1)
		time.Sleep(50 * time.Second)
		if a.Owns(keys()[0]) || a.Owner(keys()[0]) != "10.0.0.9" {
			t.Errorf("owner %q", a.Owner(keys()[0]))
		}
		time.Sleep(40 * time.Second) // it is not renewed and expires; the elector asks each 10 to 22 s
		decided(t, a)
		a.stop()
		<-a.stopped
	})
}

// Its node does not answer, and it does not renew its lease: a third of the lease is enough.
func TestTheLeaseOfAPodOnADeadNodeIsTakenSooner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newClient(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "autoscaler-9"}, Spec: corev1.PodSpec{NodeName: "dead"},
			Status: corev1.PodStatus{PodIP: "10.0.0.9"}})
		_, err := client.CoordinationV1().Leases(namespace).Create(t.Context(), leaseOf(bucket(0, 1), "autoscaler-9_10.0.0.9", 60, metav1.NowMicro()), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		a := begin(t, client, "autoscaler-1", 1)
		time.Sleep(19 * time.Second)
		if a.Owner(keys()[0]) != "10.0.0.9" {
			t.Errorf("owner %q", a.Owner(keys()[0]))
		}
		time.Sleep(3 * time.Second)
		decided(t, a)
		a.stop()
		<-a.stopped
	})
}

// A process that was frozen beyond its lease does not know yet that it lost it, but it may not
// write.
func TestAProcessMayWriteOnlyWhileItsLeaseCannotBeAnothers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newClient(t)
		a := begin(t, client, "autoscaler-1", 1)
		synctest.Wait()
		key := keys()[0]
		time.Sleep(5 * time.Minute) // it is renewed meanwhile
		if !a.Owns(key) || !a.MayWrite(key) {
			t.Fatalf("owns: %v, may write: %v", a.Owns(key), a.MayWrite(key))
		}
		a.Election.mutex.RLock()
		until := a.until[bucket(0, 1)]
		a.Election.mutex.RUnlock()
		if left := time.Until(until); left <= 0 || left > time.Minute {
			t.Errorf("its lease is its own for %s", left)
		}
		for _, past := range []time.Time{time.Now(), time.Now().Add(-time.Hour)} {
			a.renewed(bucket(0, 1), past)
			if !a.Owns(key) || a.MayWrite(key) {
				t.Errorf("frozen: owns %v, may write %v", a.Owns(key), a.MayWrite(key))
			}
		}
		a.renewed(bucket(0, 1), until)
		b := begin(t, client, "autoscaler-2", 1)
		a.stop()
		<-a.stopped
		time.Sleep(time.Minute)
		if a.MayWrite(key) || !b.MayWrite(key) {
			t.Errorf("after a change of owner: the former may write %v, the next %v", a.MayWrite(key), b.MayWrite(key))
		}
		b.stop()
		<-b.stopped
	})
}

func TestAKeyKeepsItsBucket(t *testing.T) {
	e, f := New(config("autoscaler-1", 10), nil, nil), New(config("autoscaler-2", 10), nil, nil)
	seen := map[string]int{}
	for _, key := range keys() {
		seen[e.set.Owner(key.String())]++
		if e.set.Owner(key.String()) != f.set.Owner(key.String()) {
			t.Fatalf("%s lies in two buckets", key)
		}
	}
	if len(seen) < 8 {
		t.Errorf("200 revisions lie in %d of 10 buckets", len(seen))
	}
}

func leaseOf(name, holder string, seconds int32, now metav1.MicroTime) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, AcquireTime: &now, RenewTime: &now}}
}
