package route

import (
	"context"
	"sync"
	"time"

	gatewayclient "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/gateway"
	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/settings"
)

// async returns how the Route leads calls to the courier, nil if it does not.
func (r *reconciler) async(route *servingv1.Route, s *settings.Snapshot) *plan.Async {
	if !s.Courier.Enabled {
		return nil
	}
	a, _ := names.ParseAsync(route.Annotations)
	if a.Mode == names.AsyncNever && len(a.Schedules) == 0 {
		return nil
	}
	return &plan.Async{Namespace: r.system, UID: string(route.UID), Preferred: a.Mode == names.AsyncAllowed, Always: a.Mode == names.AsyncAlways}
}

// grantAgain is how often a grant is made again that somebody may have deleted.
const grantAgain = 10 * time.Minute

// grants lets HTTPRoutes of namespaces name the courier's Service. A grant stays when a namespace
// has no more Routes: it lets nobody reach a Route whose UID he does not know.
type grants struct {
	client gatewayclient.Interface
	system string
	now    func() time.Time

	mu   sync.Mutex
	made map[string]time.Time // by namespace
}

func (g *grants) allow(ctx context.Context, namespace string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if at, made := g.made[namespace]; made && g.now().Sub(at) < grantAgain {
		return nil
	}
	if err := gateway.GrantCourier(ctx, g.client, g.system, namespace); err != nil {
		return err
	}
	g.made[namespace] = g.now()
	return nil
}
