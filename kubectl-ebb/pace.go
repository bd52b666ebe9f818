package main

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// planner is a part of Kubernetes through which each pod goes: its own limit of requests to the API
// server bounds the pods that start in a second, whatever Ebb does. The limits are those of
// kube-controller-manager's and kube-scheduler's documentation.
type planner struct {
	name     string
	requests float64 // a second, unless --kube-api-qps says otherwise
	ofPod    float64 // requests for each pod that starts from zero, by the busiest client
	wanted   string  // flags with which it does not hold pods back
}

var planners = []planner{
	{"kube-controller-manager", 20, 4, "--kube-api-qps=500 --kube-api-burst=1000 --concurrent-deployment-syncs=50 --concurrent-replicaset-syncs=50"},
	{"kube-scheduler", 50, 2, "clientConnection.qps 500 and burst 1000 in its configuration"},
}

// enoughStarts is how many pods a second are more than bursts of cold starts ask for.
const enoughStarts = 50

// inspectPlanners reads the pods of the control plane, which managed clusters do not show.
func (x *installation) inspectPlanners(ctx context.Context, a *access) {
	list, err := a.kube.CoreV1().Pods(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{LabelSelector: "tier=control-plane"})
	if x.plannersErr = err; err == nil {
		x.planners = list.Items
	}
}

func (x *installation) checkPlanners(j *checklist) {
	if j.unread("control plane", x.plannersErr, "") {
		return
	}
	for _, p := range planners {
		for _, pod := range x.planners {
			if pod.Labels["component"] != p.name {
				continue
			}
			if limit, known := p.limit(pod.Spec.Containers); known && limit/p.ofPod < enoughStarts {
				j.add(p.name, fine, fmt.Sprintf("it sends at most %g requests a second, so about %.0f pods start in a second", limit, limit/p.ofPod),
					"If bursts of cold starts wait for it, give it "+p.wanted+".")
			} else if known {
				j.ok(p.name, fmt.Sprintf("it sends at most %g requests a second", limit))
			}
			break // replicas have the same flags
		}
	}
}

// limit returns how many requests a second it sends. A file may say it, which cannot be read here.
func (p planner) limit(containers []corev1.Container) (perSecond float64, known bool) {
	if len(containers) != 1 {
		return 0, false
	}
	flags := pflag.NewFlagSet(p.name, pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = true
	flags.Float64Var(&perSecond, "kube-api-qps", p.requests, "")
	file := flags.String("config", "", "")
	err := flags.Parse(append(containers[0].Command, containers[0].Args...))
	return perSecond, err == nil && *file == ""
}
