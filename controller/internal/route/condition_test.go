package route

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"knative.dev/pkg/apis"

	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/controller/internal/gateway"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/ingress/plan"
)

// The table above conditionOf.
func TestVerdict(t *testing.T) {
	plain := errors.New("no connection")
	permanent, foreign := fmt.Sprintf("%T", reconcile.Permanent(plain)), fmt.Sprintf("%T", reconcile.Foreign(plain))
	for _, c := range []struct {
		name   string
		err    error
		ready  string // reason and message of Ready, which says what is wrong
		result string // the type of the error, "" for none
		again  time.Duration
	}{
		{"unsupported", unsupported{errors.New("too many")}, "Unsupported: too many", permanent, 0},
		{"settings", fmt.Errorf("address: %w", &plan.ConfigError{Reason: "no host"}), "ErrorConfig: no host", permanent, 0},
		{"annotation", fmt.Errorf("rollout: %w", apis.ErrInvalidValue("x", "y")), "InvalidAnnotation: rollout: invalid value: x: y", permanent, 0},
		{"host", &hostTaken{gateway.Holder{Host: "h", Kind: "Route", Namespace: "other", Name: "r"}}, `HostTaken: Route "r" in namespace "other" has the host "h"`, "", hostAgain},
		{"Service", fmt.Errorf("write: %w", &apply.NotOwnedError{Kind: "Service", Name: "s"}), "NotOwned: ", foreign, 0},
		{"HTTPRoute", &apply.NotOwnedError{Kind: "HTTPRoute", Name: "s"}, "NotOwned: ", foreign, 0},
		{"refused", apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "s", errors.New("quota")), "Forbidden: ", "*errors.StatusError", 0},
		{"other", plain, "Uninitialized: Waiting.", "*errors.errorString", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			route := &servingv1.Route{}
			route.Status.InitializeConditions()
			route.Status.MarkTrafficAssigned()
			route.Status.MarkIngressNotReady(reasonUninitialized, "Waiting.")
			again, err := conditionOf(route, c.err)
			result := ""
			if err != nil {
				result = fmt.Sprintf("%T", err)
			}
			if again != c.again || result != c.result || err != nil && !errors.Is(err, c.err) && c.name != "unsupported" {
				t.Errorf("again after %s, error %s (%v)", again, result, err)
			}
			if ready := route.Status.GetCondition(servingv1.RouteConditionReady); !strings.HasPrefix(ready.GetReason()+": "+ready.GetMessage(), c.ready) {
				t.Errorf("Ready is %s: %s, want %s", ready.GetReason(), ready.GetMessage(), c.ready)
			}
		})
	}
}
