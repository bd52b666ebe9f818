package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"ebb.dev/ebb/api/names"
	serving "ebb.dev/ebb/api/serving/v1"
)

func (p *program) rolloutCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "rollout",
		Short: "Show how requests move to the latest revision, and overrule the judge",
		Long: `Show how requests move to the latest revision, and overrule the judge.

promote and back set the annotation ` + names.RolloutOverruleAnnotation + ` of the Service. It names
the latest revision, so it means nothing once there is a newer one.`,
		Args: cobra.NoArgs,
	}
	one := func(use, short string, run func(ctx context.Context, a *access, svc *serving.Service) error) {
		root.AddCommand(&cobra.Command{
			Use: use + " SERVICE", Short: short, Args: cobra.MatchAll(cobra.ExactArgs(1)), ValidArgsFunction: p.completeServices,
			RunE: func(c *cobra.Command, args []string) error {
				a, err := p.access()
				if err != nil {
					return err
				}
				svc, err := a.ebb.ServingV1().Services(a.namespace).Get(c.Context(), args[0], metav1.GetOptions{})
				if err != nil {
					return a.plain(err)
				}
				return run(c.Context(), a, svc)
			},
		})
	}
	one("status", "Show who gets which share of the requests, and what the judge says", func(ctx context.Context, a *access, svc *serving.Service) error {
		route, err := a.ebb.ServingV1().Routes(a.namespace).Get(ctx, svc.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return fmt.Errorf("the Service %s has no Route yet", svc.Name)
		} else if err != nil {
			return a.plain(err)
		}
		return writeRollout(p.out, svc, route)
	})
	one("promote", "Let the latest revision have all requests in time, whatever the judge says or said", func(ctx context.Context, a *access, svc *serving.Service) error {
		return p.overrule(ctx, a, svc, false)
	})
	one("back", "Send the latest revision back: the one before has all requests at once", func(ctx context.Context, a *access, svc *serving.Service) error {
		return p.overrule(ctx, a, svc, true)
	})
	return root
}

// overrule writes a person's word.
func (p *program) overrule(ctx context.Context, a *access, svc *serving.Service, back bool) error {
	configuration, err := a.ebb.ServingV1().Configurations(a.namespace).Get(ctx, svc.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("the Service %s has no Configuration yet", svc.Name)
	} else if err != nil {
		return a.plain(err)
	}
	word, err := overruleOf(svc, configuration, back)
	if err != nil {
		return err
	}
	if back {
		route, err := a.ebb.ServingV1().Routes(a.namespace).Get(ctx, svc.Name, metav1.GetOptions{})
		if err != nil {
			return a.plain(err)
		}
		all, err := a.ebb.ServingV1().Revisions(a.namespace).List(ctx, metav1.ListOptions{LabelSelector: names.ConfigurationLabel + "=" + svc.Name})
		if err != nil {
			return a.plain(err)
		}
		if err := goesBack(route, word.Revision, all.Items); err != nil {
			return err
		}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{names.RolloutOverruleAnnotation: word.String()}}})
	if err != nil {
		return err
	}
	if _, err := a.ebb.ServingV1().Services(a.namespace).Patch(ctx, svc.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return a.plain(err)
	}
	_, err = fmt.Fprintf(p.out, "%s: %s\n", svc.Name, word)
	return err
}

// overruleOf is what to write, or why it would mean nothing. The Service's status follows the
// Configuration's: in the first moment of a rollout it may name the revision before.
func overruleOf(svc *serving.Service, configuration *serving.Configuration, back bool) (word names.Overrule, err error) {
	word = names.Overrule{Revision: configuration.Status.LatestReadyRevisionName, Back: back}
	if word.Revision == "" {
		return word, fmt.Errorf("the Service %s has no revision that is Ready", svc.Name)
	}
	for _, t := range svc.Spec.Traffic {
		if t.RevisionName == "" {
			return word, nil
		}
	}
	if len(svc.Spec.Traffic) > 0 {
		return word, fmt.Errorf("spec.traffic of the Service %s names its revisions: change it there", svc.Name)
	}
	return word, nil
}

// goesBack says why a revision cannot be sent back, if it is to have nobody's requests.
func goesBack(route *serving.Route, name string, all []serving.Revision) error {
	var latest *serving.Revision
	pointers := make([]*serving.Revision, len(all))
	for i := range all {
		if pointers[i] = &all[i]; all[i].Name == name {
			latest = &all[i]
		}
	}
	if latest == nil || route.LastGood(latest, pointers) != nil {
		return nil
	}
	return fmt.Errorf("there is no revision to which the requests of %s can go back: no older one is Ready and did not go back itself", name)
}

// writeRollout tells what becomes of the latest revision.
func writeRollout(w io.Writer, svc *serving.Service, route *serving.Route) error {
	var b strings.Builder
	ingress, assigned := route.Status.GetCondition(serving.RouteConditionIngressReady), route.Status.GetCondition(serving.RouteConditionAllTrafficAssigned)
	switch {
	case assigned.GetReason() == serving.ReasonWentBack:
		fmt.Fprintln(&b, assigned.GetMessage())
	case ingress.GetReason() == serving.ReasonRolloutInProgress:
		fmt.Fprintln(&b, ingress.GetMessage())
	case route.Status.GetCondition(serving.RouteConditionReady).IsTrue():
		fmt.Fprintln(&b, "No rollout is in progress.")
	default:
		fmt.Fprintf(&b, "The Route is not ready: %s\n", route.Status.GetCondition(serving.RouteConditionReady).GetMessage())
	}
	for _, t := range route.Status.Traffic {
		fmt.Fprintf(&b, "  %3d %%  %s", ptr.Deref(t.Percent, 0), t.RevisionName)
		if t.Tag != "" {
			fmt.Fprintf(&b, "  tag %s", t.Tag)
		}
		fmt.Fprintln(&b)
	}
	for _, key := range []string{names.RolloutGuardAnnotation, names.RolloutDurationAnnotation, names.RolloutStepsAnnotation, names.RolloutOverruleAnnotation} {
		if text, spelling, ok := names.Lookup(svc.Annotations, key); ok {
			fmt.Fprintf(&b, "%s: %s\n", spelling, text)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
