package process

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	viewv1alpha1 "ebb.dev/ebb/api/view/v1alpha1"
	"ebb.dev/ebb/autoscaler/alive"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/internal/pods"
)

// silentNodes returns the nodes with pods of a revision that do not answer.
func (p *process) silentNodes(key loop.Key) (all []viewv1alpha1.SilentNode) {
	for _, v := range p.nodes.Now() {
		if n := p.index.On(key, v.Node); n > 0 {
			all = append(all, viewv1alpha1.SilentNode{Name: v.Node, Pods: n, State: v.State.String(), Since: p.nodes.Since(v).UTC(), Reason: v.Reason})
		}
	}
	return all
}

// listed lists the nodes with pods of services or an activator, and addresses there. That of an
// activator is the first: no tenant can keep it from answering. Nodes of the agents that are
// witnesses are listed, too: they count among those that answer. Where all pods and activators are
// on this node, it lists none, because nothing is decided about that.
func listed(self string, index *pods.Index, activators, agents func() map[string]string) func(maxEach int) map[string][]string {
	return func(maxEach int) map[string][]string {
		there := activators()
		delete(there, self)
		if len(there) == 0 && !index.Elsewhere(self) {
			return nil
		}
		all := index.Nodes(maxEach)
		for node, ip := range there {
			all[node] = slices.Insert(all[node], 0, ip)
		}
		for node, ip := range agents() {
			if _, other := all[node]; !other {
				all[node] = []string{ip}
			}
		}
		return all
	}
}

// tellOfNode tells of a verdict in an event of the node. Of several replicas the first one does,
// which also tells the controller. Each tells of a node that it calls lost, because it replaces
// pods of its own revisions for that.
func tellOfNode(recorder record.EventRecorder, v alive.Verdict, first bool) {
	// As the kubelet does, by the name in place of the UID.
	node := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: v.Node, UID: types.UID(v.Node)}
	switch {
	case v.State == alive.Lost:
		recorder.Event(node, corev1.EventTypeWarning, "NodeLost", v.Reason)
	case !first:
	case v.State == alive.Silent:
		recorder.Event(node, corev1.EventTypeWarning, "NodeSilent", v.Reason)
	default:
		recorder.Event(node, corev1.EventTypeNormal, "NodeAnswers", v.Reason)
	}
}

// nodeAgents finds the node agents that run, by node.
func nodeAgents(kube kubernetes.Interface, namespace string) func(context.Context) (map[string]netip.Addr, error) {
	return func(ctx context.Context) (map[string]netip.Addr, error) {
		list, err := kube.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{
			LabelSelector: discoveryv1.LabelServiceName + "=node-agent", ResourceVersion: "0"})
		if err != nil {
			return nil, fmt.Errorf("list the EndpointSlices of Service %s/node-agent: %w", namespace, err)
		}
		found := map[string]netip.Addr{}
		for _, slice := range list.Items {
			for _, e := range slice.Endpoints {
				if e.NodeName == nil || len(e.Addresses) == 0 || e.Conditions.Ready != nil && !*e.Conditions.Ready {
					continue
				}
				if address, err := netip.ParseAddr(e.Addresses[0]); err == nil {
					found[*e.NodeName] = address
				}
			}
		}
		return found, nil
	}
}

// renewals reads when the Lease of a node was renewed.
func renewals(kube kubernetes.Interface) func(ctx context.Context, node string) (string, error) {
	return func(ctx context.Context, node string) (string, error) {
		lease, err := kube.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return "", fmt.Errorf("get the Lease of node %s: %w", node, err)
		}
		if lease.Spec.RenewTime == nil { // no kubelet wrote it
			return "", fmt.Errorf("the Lease of node %s does not say when it was renewed", node)
		}
		return lease.Spec.RenewTime.String(), nil
	}
}

func dialTCP(ctx context.Context, address string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", address)
}
