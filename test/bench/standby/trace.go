package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/result"
)

// slowWake is a wake whose time is to be explained.
type slowWake struct {
	pod            string
	sent, answered time.Time
}

// change is a change of a pod's state, as its queue-proxy logs it. Its clock and the agent's are
// the node's; on a cluster of several machines they must agree with this program's.
type change struct {
	Time     time.Time
	From, To string
}

// work is what a node agent did to a pod, as it logs it: it was asked to, had a place in its queue
// at Began, and was done at Timestamp.
type work struct {
	Timestamp, Asked, Began time.Time
	Work                    string
	Pod                     string // namespace/name
}

// pieces says where the time of a wake was spent, in milliseconds:
//
//	before      the gateway, the activator, and the way to queue-proxy's gate
//	to_agent    from queue-proxy's order until the agent has read it: the scheduler
//	queue       until the agent has a place for it, after other wakes
//	thaw        the kernel's work
//	from_agent  until queue-proxy has read the answer: the scheduler
//	after       the container, and the way back
//
// The freeze_beside, thaw_beside and compress_beside are the agent's work on other pods of the node
// meanwhile.
func (w slowWake) pieces(namespace string, changes []change, works []work) result.Fields {
	fields := result.Fields{"pod": w.pod, "wake_ms": result.Milliseconds(w.answered.Sub(w.sent))}
	within := func(at time.Time) bool { return !at.Before(w.sent) && !at.After(w.answered) }
	var order, awake time.Time
	for _, c := range changes {
		switch {
		case !within(c.Time):
		case c.To == "thawing" && order.IsZero():
			order = c.Time
		case c.To == "awake" && !order.IsZero() && awake.IsZero():
			awake = c.Time
		}
	}
	beside := map[string]time.Duration{"freeze": 0, "thaw": 0, "compress": 0}
	var thaw *work
	for i := range works {
		one := &works[i]
		if one.Pod != namespace+"/"+w.pod {
			from, to := one.Began, one.Timestamp
			if from.Before(w.sent) {
				from = w.sent
			}
			if to.After(w.answered) {
				to = w.answered
			}
			beside[one.Work] += max(to.Sub(from), 0)
		} else if one.Work == "thaw" && within(one.Asked) && thaw == nil {
			thaw = one
		}
	}
	for kind, took := range beside {
		fields[kind+"_beside_ms"] = result.Milliseconds(took)
	}
	if order.IsZero() || awake.IsZero() || thaw == nil {
		fields["incomplete"] = true // such as a pod that slept warm, or a log that was rotated
		return fields
	}
	last := w.sent
	for _, piece := range []struct {
		name string
		end  time.Time
	}{{"before", order}, {"to_agent", thaw.Asked}, {"queue", thaw.Began}, {"thaw", thaw.Timestamp}, {"from_agent", awake}, {"after", w.answered}} {
		fields[piece.name+"_ms"] = result.Milliseconds(piece.end.Sub(last))
		last = piece.end
	}
	return fields
}

// lines reads a log of JSON lines, of which only those with a word count.
func lines[T any](log []byte, word string) (all []T) {
	for line := range bytes.Lines(log) {
		var one T
		if bytes.Contains(line, []byte(word)) && json.Unmarshal(line, &one) == nil {
			all = append(all, one)
		}
	}
	return all
}

// tell prints where the time of slow wakes was spent.
func (b *bench) tell(ctx context.Context, slow []slowWake, prefix string) error {
	if len(slow) == 0 {
		return nil
	}
	since := metav1.NewTime(slow[0].sent.Add(-time.Minute))
	agents, err := b.Kube.CoreV1().Pods(cluster.System).List(ctx, metav1.ListOptions{LabelSelector: "app=node-agent"})
	if err != nil {
		return fmt.Errorf("list node agents: %w", err)
	}
	works := map[string][]work{} // by node
	for _, agent := range agents.Items {
		log, err := b.log(ctx, cluster.System, agent.Name, "agent", since)
		if err != nil {
			return err
		}
		works[agent.Spec.NodeName] = append(works[agent.Spec.NodeName], lines[work](log, `"worked"`)...)
	}
	changes, nodes := map[string][]change{}, map[string]string{}
	for _, w := range slow {
		if _, known := nodes[w.pod]; !known {
			pod, err := b.Kube.CoreV1().Pods(b.namespace).Get(ctx, w.pod, metav1.GetOptions{})
			if err != nil {
				return fmt.Errorf("get pod %s: %w", w.pod, err)
			}
			log, err := b.log(ctx, b.namespace, w.pod, "queue-proxy", since)
			if err != nil {
				return err
			}
			nodes[w.pod], changes[w.pod] = pod.Spec.NodeName, lines[change](log, `"sleep"`)
		}
		fields := w.pieces(b.namespace, changes[w.pod], works[nodes[w.pod]])
		fields["trace"] = prefix + "wake"
		if err := b.out.Line(fields); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) log(ctx context.Context, namespace, pod, container string, since metav1.Time) ([]byte, error) {
	text, err := b.Kube.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{Container: container, SinceTime: &since}).DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the log of %s/%s: %w", namespace, pod, err)
	}
	return text, nil
}

// logAll makes new queue-proxies and the node agents log what they do. undo is to be run after an
// error, too.
func logAll(ctx context.Context, c *cluster.Cluster) (undo cluster.Undo, err error) {
	restore, err := c.SetConfig(ctx, "config-logging", map[string]string{"loglevel.queueproxy": "debug"})
	if err != nil {
		return nil, err
	}
	undo = append(undo, restore, func(ctx context.Context) error {
		return setAgents(ctx, c, `{"name":"EBB_LOG_LEVEL","$patch":"delete"}`)
	})
	return undo, setAgents(ctx, c, `{"name":"EBB_LOG_LEVEL","value":"debug"}`)
}

// setAgents changes a variable of the node agents and waits until they have started anew.
func setAgents(ctx context.Context, c *cluster.Cluster, variable string) error {
	agents := c.Kube.AppsV1().DaemonSets(cluster.System)
	patch := fmt.Appendf(nil, `{"spec":{"template":{"spec":{"containers":[{"name":"agent","env":[%s]}]}}}}`, variable)
	set, err := agents.Patch(ctx, "node-agent", types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("set the log level of the node agents: %w", err)
	}
	generation := set.Generation
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err = cluster.Until(ctx, func() (bool, string, error) {
		set, err := agents.Get(ctx, "node-agent", metav1.GetOptions{})
		if err != nil {
			return false, err.Error(), nil
		}
		s := set.Status
		return s.ObservedGeneration >= generation && s.UpdatedNumberScheduled == s.DesiredNumberScheduled && s.NumberReady == s.DesiredNumberScheduled,
			fmt.Sprintf("%d of %d are ready", s.NumberReady, s.DesiredNumberScheduled), nil
	})
	if err != nil {
		return fmt.Errorf("wait for the node agents: %w", err)
	}
	return nil
}
