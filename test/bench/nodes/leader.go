package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ebb.dev/ebb/test/internal/cluster"
)

// lead makes an autoscaler on the node the leader, with another one elsewhere to follow it.
func (p places) lead(ctx context.Context) (restore func(context.Context) error, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	deployments := p.Kube.AppsV1().Deployments(cluster.System)
	before, err := deployments.Get(ctx, "autoscaler", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	scale := func(ctx context.Context, n int32) error {
		patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n)
		_, err := deployments.Patch(ctx, "autoscaler", types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}
	if err := p.Only(ctx, p.ends); err != nil {
		return nil, err
	}
	if err := scale(ctx, 2); err != nil {
		return nil, err
	}
	restore = func(ctx context.Context) error { return scale(ctx, *before.Spec.Replicas) }
	if err := p.AwaitComponents(ctx); err != nil {
		return restore, err
	}
	if err := p.Only(ctx, p.stay()...); err != nil {
		return restore, err
	}
	err = cluster.Until(ctx, func() (bool, string, error) {
		there, err := p.on(ctx, cluster.System, "app=autoscaler")
		if err != nil || len(there) == 0 {
			return false, fmt.Sprintf("no autoscaler is on node %s: %v", p.ends, err), nil
		}
		leaders, err := p.leaders(ctx)
		if err != nil {
			return false, err.Error(), nil
		}
		delete(leaders, there[0].Name)
		for other := range leaders {
			_ = p.Kube.CoreV1().Pods(cluster.System).Delete(ctx, other, metav1.DeleteOptions{})
			return false, other + " leads", nil
		}
		return true, "", nil
	})
	if err != nil {
		return restore, err
	}
	if err := p.AwaitComponents(ctx); err != nil {
		return restore, err
	}
	return restore, p.Only(ctx, p.All...)
}

// leaders are the autoscalers that hold leases.
func (p places) leaders(ctx context.Context) (map[string]bool, error) {
	leases, err := p.Kube.CoordinationV1().Leases(cluster.System).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	pods := map[string]bool{}
	for _, lease := range leases.Items {
		if strings.HasPrefix(lease.Name, "autoscaler-bucket-") && lease.Spec.HolderIdentity != nil {
			pod, _, _ := strings.Cut(*lease.Spec.HolderIdentity, "_")
			pods[pod] = true
		}
	}
	return pods, nil
}

// led returns how long it takes until none of the pods holds a lease, nil if ctx ends before.
func (p places) led(ctx context.Context, begun time.Time, pods map[string]bool) any {
	if cluster.Until(ctx, func() (bool, string, error) {
		now, err := p.leaders(ctx)
		for pod := range now {
			if pods[pod] || pod == "" {
				return false, "", nil
			}
		}
		return err == nil && len(now) > 0, "", nil
	}) != nil {
		return nil
	}
	return time.Since(begun).Seconds()
}
