package route

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/labels"

	listers "ebb.dev/ebb/api/client/listers/serving/v1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/gateway"
	"ebb.dev/ebb/controller/internal/reconcile"
)

// Rollouts is a metric of the rollouts that are under way, and of those that went back, for each
// namespace that has one or a Route with a guard. Each replica of the controller tells all.
func Rollouts(mgr *reconcile.Manager) prometheus.Collector {
	return rollouts{mgr.EbbInformers.Serving().V1().Routes().Lister()}
}

type rollouts struct{ routes listers.RouteLister }

var rolloutsOf = prometheus.NewDesc("ebb_rollouts",
	"Routes whose requests move to the latest revision (state in_progress), stand still on the way to it (held), or went back from it (went_back).", []string{"k8s_namespace_name", "state"}, nil)

// Describe implements prometheus.Collector.
func (r rollouts) Describe(out chan<- *prometheus.Desc) { out <- rolloutsOf }

// Collect implements prometheus.Collector.
func (r rollouts) Collect(out chan<- prometheus.Metric) {
	all, err := r.routes.List(labels.Everything())
	if err != nil {
		return // caches do not fail
	}
	type states struct{ inProgress, held, wentBack int }
	counts := map[string]*states{}
	of := func(namespace string) *states {
		if counts[namespace] == nil {
			counts[namespace] = &states{}
		}
		return counts[namespace]
	}
	for _, route := range all {
		if guard, err := names.RolloutGuard(route.Annotations); err == nil && guard.On() {
			of(route.Namespace)
		}
		switch {
		case route.Status.GetCondition(servingv1.RouteConditionAllTrafficAssigned).GetReason() == servingv1.ReasonWentBack:
			of(route.Namespace).wentBack++
		case route.Status.RolloutHeld():
			of(route.Namespace).held++
		case route.Status.GetCondition(servingv1.RouteConditionIngressReady).GetReason() == servingv1.ReasonRolloutInProgress:
			of(route.Namespace).inProgress++
		}
	}
	for namespace, n := range counts {
		out <- prometheus.MustNewConstMetric(rolloutsOf, prometheus.GaugeValue, float64(n.inProgress), namespace, "in_progress")
		out <- prometheus.MustNewConstMetric(rolloutsOf, prometheus.GaugeValue, float64(n.held), namespace, "held")
		out <- prometheus.MustNewConstMetric(rolloutsOf, prometheus.GaugeValue, float64(n.wentBack), namespace, "went_back")
	}
}

// Resting is a metric of the Routes whose plans activators follow. Each replica of the controller
// tells all.
func Resting(mgr *reconcile.Manager) prometheus.Collector {
	planned := gateway.NewPlanned(mgr.EbbInformers.Serving().V1().Routes().Informer())
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "ebb_resting_routes",
		Help: "Routes whose plans activators follow. Their hosts rest, or may rest when nobody sends much to them."},
		func() float64 { return float64(planned.Len()) })
}
