package lease

import (
	"context"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// known are the Leases of the namespace, of all components.
type known struct{ store cache.Store }

func (k known) list() []*coordinationv1.Lease {
	var all []*coordinationv1.Lease
	for _, o := range k.store.List() {
		if l, ok := o.(*coordinationv1.Lease); ok {
			all = append(all, l)
		}
	}
	return all
}

// follow looks at each Lease when it changes, so that one that is given back is taken at once and each replica knows who holds what.
// Nothing depends on it: without it the electors ask once a retry period.
func (e *Election) follow(ctx context.Context, group *sync.WaitGroup) known {
	factory := informers.NewSharedInformerFactoryWithOptions(e.Client, 0, informers.WithNamespace(e.Namespace))
	informer := factory.Coordination().V1().Leases().Informer()
	see := func(o any) {
		if l, ok := o.(*coordinationv1.Lease); ok {
			e.look(l)
		}
	}
	// Neither fails on an informer that was not started.
	_ = informer.SetTransform(func(o any) (any, error) {
		if l, ok := o.(*coordinationv1.Lease); ok {
			l.ManagedFields = nil
		}
		return o, nil
	})
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    see,
		UpdateFunc: func(_, now any) { see(now) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			if l, ok := o.(*coordinationv1.Lease); ok {
				e.vanished(l)
			}
		},
	})
	factory.Start(ctx.Done())
	group.Go(func() {
		<-ctx.Done()
		factory.Shutdown()
	})
	return known{informer.GetStore()}
}

// sweepPeriod is how often holders are looked for that are gone.
const sweepPeriod = time.Second

// sweep clears the Leases that have run out and those of holders that do not exist any more. So they are taken at once, and it does not
// matter that an elector that begins anew gives everybody a whole lease's time anew.
func (e *Election) sweep(ctx context.Context, leases known) {
	ticker := time.NewTicker(sweepPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		gone := map[string]bool{}
		for _, l := range leases.list() {
			holder, t := holderOf(l), e.present()
			if _, ours := t.seats[l.Name]; holder == "" || holder == e.Identity || !ours && !e.theirs(t, l) {
				continue
			}
			why, version := "it has run out", l.ResourceVersion
			if !e.expired(l) {
				if _, asked := gone[holder]; !asked {
					gone[holder] = e.Gone != nil && e.Gone(ctx, holder)
				}
				if !gone[holder] {
					continue
				}
				why, version = "its holder does not exist any more", ""
			}
			if err := free(ctx, e, l.Name, holder, version); err != nil {
				e.Log.Warn("a lease cannot be freed", "lease", l.Name, "holder", holder, "why", why, "error", err.Error())
				continue
			}
			e.Log.Info("freed a lease", "lease", l.Name, "holder", holder, "why", why)
		}
	}
}

// PodGone is Election.Gone for replicas that are called after their pod, with or without its address behind an underscore: after
// a restart of its node a pod keeps its name and gets a new address, and nothing of what it was runs any more. A pod
// that exists with the holder's address keeps its Lease, whatever its state: it may still write.
func PodGone(client kubernetes.Interface, namespace string) func(ctx context.Context, identity string) bool {
	return func(ctx context.Context, identity string) bool {
		pod, ip, _ := strings.Cut(identity, "_")
		found, err := client.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
		moved := err == nil && ip != "" && found.Status.PodIP != "" && found.Status.PodIP != ip
		return moved || apierrors.IsNotFound(err)
	}
}
