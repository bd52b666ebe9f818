// Package routes knows the Routes that calls are for, and how many calls their pods take.
//
// Owns: the informers of Routes and PodAutoscalers. Reads: them, settings. Writes: nothing. Never:
// lets a request pass whose target no Route has named.
package routes

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"strings"
	"sync"

	"k8s.io/client-go/tools/cache"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/client/informers/externalversions"
	"ebb.dev/ebb/api/client/versioned"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/courier/internal/accept"
	"ebb.dev/ebb/courier/internal/call"
	"ebb.dev/ebb/courier/internal/deliver"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/wire"
)

// Route is what the courier needs of one Route.
type Route struct {
	Service call.Service
	UID     string
	Host    string // the Route's own inside the cluster
	Asked   string // its host in status.url
	Async   names.Async
	Shares  []Share
}

// Share is the part of a Route's requests that a revision gets.
type Share struct {
	Revision string
	Percent  int64
}

// pods is what the autoscaler says of a revision.
type pods struct {
	ready int64
	limit int64 // requests at once in each, 0 is none
}

// Table is the Routes.
type Table struct {
	Ebb           versioned.Interface
	Settings      *settings.Store
	ClusterDomain string
	// Known is closed once all Routes that exist are known.
	Known chan struct{}

	mu     sync.RWMutex
	routes map[call.Service]*Route
	pods   map[string]pods // by namespace/revision
}

// New makes a Table of its exported fields.
func New(t *Table) *Table {
	t.routes, t.pods, t.Known = map[call.Service]*Route{}, map[string]pods{}, make(chan struct{})
	return t
}

// Run watches until ctx is done.
func (t *Table) Run(ctx context.Context) error {
	factory := externalversions.NewSharedInformerFactory(t.Ebb, 0)
	var synced []cache.InformerSynced
	for informer, set := range map[cache.SharedIndexInformer]func(object any, gone bool){
		factory.Serving().V1().Routes().Informer():                   t.route,
		factory.Autoscaling().V1alpha1().PodAutoscalers().Informer(): t.autoscaler,
	} {
		if err := informer.SetTransform(trim); err != nil {
			return fmt.Errorf("watch: %w", err)
		}
		handle, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(o any) { set(o, false) }, UpdateFunc: func(_, o any) { set(o, false) },
			DeleteFunc: func(o any) {
				if tombstone, ok := o.(cache.DeletedFinalStateUnknown); ok {
					o = tombstone.Obj
				}
				set(o, true)
			},
		})
		if err != nil {
			return fmt.Errorf("watch: %w", err)
		}
		synced = append(synced, handle.HasSynced)
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	if cache.WaitForCacheSync(ctx.Done(), synced...) {
		close(t.Known)
	}
	<-ctx.Done()
	return nil
}

// trim drops what is not read, before an object is kept.
func trim(object any) (any, error) {
	switch o := object.(type) {
	case *servingv1.Route:
		o.ManagedFields, o.Spec = nil, servingv1.RouteSpec{}
		kept := map[string]string{}
		for _, key := range names.AsyncAnnotations {
			if text, ok := o.Annotations[key]; ok {
				kept[key] = text
			}
		}
		o.Annotations = kept
	case *autoscalingv1alpha1.PodAutoscaler:
		o.ManagedFields, o.Annotations, o.Status.Conditions = nil, nil, nil
	}
	return object, nil
}

func (t *Table) route(object any, gone bool) {
	o, ok := object.(*servingv1.Route)
	if !ok {
		return
	}
	of := call.Service{Namespace: o.Namespace, Name: o.Name}
	r := &Route{Service: of, UID: string(o.UID), Host: o.Name + "." + o.Namespace + ".svc." + t.ClusterDomain}
	if r.Asked = r.Host; o.Status.URL != nil {
		r.Asked = o.Status.URL.Host
	}
	r.Async, _ = names.ParseAsync(o.Annotations)
	for _, target := range o.Status.Traffic {
		if target.Percent != nil && *target.Percent > 0 && target.RevisionName != "" {
			r.Shares = append(r.Shares, Share{target.RevisionName, *target.Percent})
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if gone {
		delete(t.routes, of)
	} else {
		t.routes[of] = r
	}
}

func (t *Table) autoscaler(object any, gone bool) {
	o, ok := object.(*autoscalingv1alpha1.PodAutoscaler)
	if !ok {
		return
	}
	p := pods{limit: o.Spec.ContainerConcurrency}
	if o.Status.ActualScale != nil {
		p.ready = int64(*o.Status.ActualScale)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if key := o.Namespace + "/" + o.Name; gone {
		delete(t.pods, key)
	} else {
		t.pods[key] = p
	}
}

// Find returns a Route, nil if there is none.
func (t *Table) Find(of call.Service) *Route {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.routes[of]
}

// All returns the Routes.
func (t *Table) All() map[call.Service]*Route {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return maps.Clone(t.routes)
}

// room is how many calls the pods of a Route take at once. A revision without pods counts as one
// with one, or no call would wake it.
func (t *Table) room(r *Route, unlimited int64) int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var room int64
	for _, s := range r.Shares {
		p := t.pods[r.Service.Namespace+"/"+s.Revision]
		limit := p.limit
		if limit == 0 {
			limit = unlimited
		}
		room += max(p.ready, 1) * limit
	}
	return int(max(room, 1))
}

// maxUnderWay bounds the calls to one service, however many pods it has.
const maxUnderWay = 4096

// Delivery has the rules for deliveries.
func (t *Table) Delivery() deliver.Routes { return delivery{t} }

type delivery struct{ *Table }

func (t delivery) Rules(of call.Service) (deliver.Rules, bool) {
	s := t.Settings.Load().Courier
	rules := deliver.Rules{Attempts: int(s.Attempts), Backoff: call.Backoff{First: s.FirstBackoff, Max: s.MaxBackoff},
		Timeout: s.AttemptTimeout, Queue: s.KeepQueued, MaxResult: s.MaxResult}
	r := t.Find(of)
	if r == nil {
		return rules, false
	}
	rules.UID, rules.Rate = r.UID, r.Async.Rate
	rules.Concurrency = min(t.room(r, int64(s.Concurrency)), maxUnderWay)
	if r.Async.Concurrency > 0 {
		rules.Concurrency = min(rules.Concurrency, int(r.Async.Concurrency))
	}
	return rules, true
}

// Acceptance has the rules for what is accepted.
func (t *Table) Acceptance() accept.Routes { return acceptance{t} }

type acceptance struct{ *Table }

func (t acceptance) Rules(target wire.AsyncTarget) (accept.Rules, bool) {
	r := t.Find(call.Service{Namespace: target.Namespace, Name: target.Route})
	if r == nil || r.UID == "" || r.UID != target.UID || r.Async.Mode == names.AsyncNever || !t.local(target) {
		return accept.Rules{}, false
	}
	s := t.Settings.Load().Courier
	return accept.Rules{MaxBody: s.MaxBody, Queue: int(s.QueueCalls), Hops: int(s.Hops), Callback: r.Async.Callback, MayCallBack: r.Async.MayCallBack}, true
}

// local reports whether the host is one of the namespace's inside the cluster.
func (t *Table) local(target wire.AsyncTarget) bool {
	name, ok := strings.CutSuffix(target.Host, "."+target.Namespace+".svc."+t.ClusterDomain)
	return ok && name != "" && !strings.ContainsAny(name, ".:") && url.PathEscape(name) == name
}
