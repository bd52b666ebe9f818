package main

import (
	"context"
	"slices"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	autoscaling "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	serving "ebb.dev/ebb/api/serving/v1"
	view "ebb.dev/ebb/api/view/v1alpha1"
)

func (p *program) explainCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "explain SERVICE",
		Short: "Tell how many pods a Service has, and why",
		Long: `Tell how many pods a Service has, and why.

The first line is the answer. Then, for each Revision that gets requests or is being rolled out: the
load, what the formula makes of it, the rule that decided, the limits, the pods, and the newest
decisions. They come from the API view.ebb.dev; without it, the events of the PodAutoscaler stand in
for them.`,
		Example: `  kubectl ebb explain hello
  kubectl ebb explain hello -n shop -o json`,
		Args:              cobra.MatchAll(cobra.ExactArgs(1)),
		ValidArgsFunction: p.completeServices,
		RunE: func(c *cobra.Command, args []string) error {
			a, err := p.access()
			if err != nil {
				return err
			}
			about, err := a.gather(c.Context(), args[0])
			if err != nil {
				return err
			}
			answer := explain(about)
			if p.output == "json" {
				return writeJSON(p.out, answer)
			}
			return answer.write(p.out, p.now())
		},
	}
	p.addOutput(c)
	return c
}

// subject is what is known of a Service.
type subject struct {
	service   *serving.Service
	revisions []revision
	// away says why decisions are old, if they are. viewless says why there is no view.
	away, viewless string
	// view is what the API tells, nil if it does not answer.
	view *view.ServiceView
}

// revision is one that gets requests, or is to get some.
type revision struct {
	*serving.Revision
	percent int64
	tags    []string
	// scaler is nil if there is none yet.
	scaler *autoscaling.PodAutoscaler
	events []corev1.Event
	// bare: it has no Deployment.
	bare bool
}

// gather reads a Service and what belongs to it.
func (a *access) gather(ctx context.Context, name string) (*subject, error) {
	service, err := a.ebb.ServingV1().Services(a.namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, a.noService(name, err)
	}
	about := &subject{service: service, away: a.autoscalerAway(ctx)}
	if about.view, err = a.viewOf(ctx, name); err != nil {
		about.viewless = whyNoView(err)
	}
	for _, r := range routed(service) {
		r.Revision, err = a.ebb.ServingV1().Revisions(a.namespace).Get(ctx, r.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) { // deleted meanwhile
			continue
		}
		if err != nil {
			return nil, a.plain(err)
		}
		r.scaler, err = a.ebb.AutoscalingV1alpha1().PodAutoscalers(a.namespace).Get(ctx, r.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			r.scaler, err = nil, nil
		}
		if err != nil {
			return nil, a.plain(err)
		}
		_, err = a.kube.AppsV1().Deployments(a.namespace).Get(ctx, names.Deployment(r.Name), metav1.GetOptions{})
		if r.bare = apierrors.IsNotFound(err); err != nil && !r.bare && !apierrors.IsForbidden(err) {
			return nil, a.plain(err)
		}
		list, err := a.kube.CoreV1().Events(a.namespace).List(ctx, metav1.ListOptions{FieldSelector: fields.Set{
			"involvedObject.kind": "PodAutoscaler", "involvedObject.name": r.Name}.String()})
		if err != nil && !apierrors.IsForbidden(err) {
			return nil, err
		}
		if err == nil {
			r.events = list.Items
		}
		about.revisions = append(about.revisions, r)
	}
	return about, nil
}

// routed names the Revisions of a Service's traffic, and the newest one if it gets none yet.
func routed(s *serving.Service) (all []revision) {
	add := func(name string) *revision {
		i := slices.IndexFunc(all, func(r revision) bool { return r.Name == name })
		if i < 0 {
			i = len(all)
			all = append(all, revision{Revision: &serving.Revision{ObjectMeta: metav1.ObjectMeta{Name: name}}})
		}
		return &all[i]
	}
	for _, t := range s.Status.Traffic {
		if t.RevisionName == "" {
			continue
		}
		r := add(t.RevisionName)
		if t.Percent != nil {
			r.percent += *t.Percent
		}
		if t.Tag != "" {
			r.tags = append(r.tags, t.Tag)
		}
	}
	if newest := s.Status.LatestCreatedRevisionName; newest != "" {
		add(newest)
	}
	return all
}
