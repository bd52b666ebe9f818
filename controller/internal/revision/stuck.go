package revision

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/flowcontrol"

	servingv1 "ebb.dev/ebb/api/serving/v1"
)

// What a volume or the network of a pod lacks, and which probe ended a container, only Events tell.
// They are not watched: a cluster has more of them than of anything else. For a revision without a
// pod that is ready, the Events of its newest pod that hangs are listed.
const (
	// stuckAfter is the age from which on a pod that has not started hangs.
	stuckAfter = 3 * time.Second
	// lookWithin bounds one list, and maxEvents what it brings.
	lookWithin = 5 * time.Second
	maxEvents  = 200
	// looksPerSecond and looksAtOnce bound the lists of a replica.
	looksPerSecond, looksAtOnce = 5, 20
	// eventCounts is how long an Event counts beside the newest one. The kubelet tries again after
	// at most two minutes, and after 25 Events of a pod writes one in five minutes.
	eventCounts = 15 * time.Minute
)

// lookAgain is when to look again at a pod of this age.
func lookAgain(age time.Duration) time.Duration {
	return min(max(age/10, 4*time.Second), time.Minute)
}

// news is what the Events of a pod tell.
type news struct {
	pod types.UID
	at  time.Time
	// trouble is why the pod does not start.
	trouble trouble
	// probes are, by the container's name, the probe that ended it and its words.
	probes map[string]failedProbe
	// nodeSilent means that the pod's node does not answer.
	nodeSilent bool
}

type failedProbe struct {
	kind, words string
	at          time.Time
}

// looker lists Events, seldom.
type looker struct {
	list   func(ctx context.Context, namespace string, of fields.Set) ([]corev1.Event, error)
	now    func() time.Time
	tokens flowcontrol.RateLimiter
	mutex  sync.Mutex
	seen   map[types.UID]news // by the UID of the Revision
}

func newLooker(kube kubernetes.Interface, now func() time.Time) *looker {
	return &looker{now: now, tokens: flowcontrol.NewTokenBucketRateLimiter(looksPerSecond, looksAtOnce), seen: map[types.UID]news{},
		list: func(ctx context.Context, namespace string, of fields.Set) ([]corev1.Event, error) {
			list, err := kube.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: of.String(), Limit: maxEvents})
			if err != nil {
				return nil, err
			}
			return list.Items, nil
		}}
}

func (l *looker) deleted(object any) {
	if rev, ok := object.(*servingv1.Revision); ok {
		l.forget(rev.UID)
	}
}

func (l *looker) forget(revision types.UID) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	delete(l.seen, revision)
}

// look returns the news of a revision's newest pod that hangs, and when to look again: 0 is only
// when something happens. If the list fails, what was seen before counts on.
func (l *looker) look(ctx context.Context, rev *servingv1.Revision, o observation) (news, time.Duration) {
	pod := hanging(o)
	if pod == nil {
		l.forget(rev.UID)
		return news{}, 0
	}
	l.mutex.Lock()
	have := l.seen[rev.UID]
	l.mutex.Unlock()
	if have.pod != pod.UID {
		have = news{}
	}
	now := l.now()
	age := now.Sub(pod.CreationTimestamp.Time)
	if age < stuckAfter {
		return have, stuckAfter - age
	}
	again := lookAgain(age)
	if since := now.Sub(have.at); have.pod != "" && since < again {
		return have, again - since
	}
	if !l.tokens.TryAccept() {
		return have, again
	}
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	events, err := l.list(ctx, pod.Namespace, fields.Set{"involvedObject.uid": string(pod.UID)})
	for _, claim := range claimsOf(&rev.Spec.PodSpec) {
		if err == nil && waitsForClaim(pod) {
			var of []corev1.Event
			of, err = l.list(ctx, pod.Namespace, fields.Set{"involvedObject.kind": "PersistentVolumeClaim", "involvedObject.name": claim})
			events = append(events, of...)
		}
	}
	if err != nil {
		return have, again
	}
	found := readEvents(events)
	if found.trouble.none() {
		found.trouble = have.trouble // Events end after an hour
	}
	found.pod, found.at = pod.UID, now
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.seen[rev.UID] = found
	return found, again
}

// hanging returns the newest pod that can still become ready, if none is.
func hanging(o observation) *corev1.Pod {
	if readyPods(o.pods) > 0 || o.asleep() {
		return nil
	}
	pods := slices.DeleteFunc(slices.Clone(o.pods), func(p *corev1.Pod) bool { return !alive(p) })
	if len(pods) == 0 {
		return nil
	}
	return slices.MaxFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(b.Name, a.Name))
	})
}

func waitsForClaim(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, "unbound immediate PersistentVolumeClaims")
	})
}

// claimsOf are the first few claims of a pod.
func claimsOf(template *corev1.PodSpec) (claims []string) {
	for _, v := range template.Volumes {
		if v.PersistentVolumeClaim != nil && len(claims) < 4 {
			claims = append(claims, v.PersistentVolumeClaim.ClaimName)
		}
	}
	return claims
}

// provisioning is the reason of a claim's Event.
const provisioning = "ProvisioningFailed"

// stages order the Events of a pod that does not start by how far it has got. Those of one stage
// come in turn.
var stages = map[string]int{
	provisioning:  1,
	"FailedMount": 2, "FailedAttachVolume": 2, "FailedMapVolume": 2, "FailedPrepareDynamicResources": 2,
	"NetworkNotReady": 3, "FailedCreatePodSandBox": 3,
}

// killing is the Event of a container that a probe ends.
var killing = regexp.MustCompile(`^Container (\S+) failed (startup|liveness) probe`)

// kubeletBehind is what kubelet says while it has not read a ConfigMap or a Secret itself. It tries
// again at once, so this is no trouble of the pod; one that is not there is "not found".
var kubeletBehind = regexp.MustCompile(`failed to sync (configmap|secret) cache: |object "[^"]*"/"[^"]*" not registered`)

// readEvents returns what Events tell. Of those that alternate, the same is chosen each time.
func readEvents(events []corev1.Event) (found news) {
	slices.SortFunc(events, func(a, b corev1.Event) int {
		return cmp.Or(lastSeen(b).Compare(lastSeen(a)), cmp.Compare(a.Message, b.Message))
	})
	var newest *corev1.Event
	chosen := trouble{}
	for i := range events {
		e := &events[i]
		switch {
		case e.Reason == "Killing":
			if m := killing.FindStringSubmatch(e.Message); m != nil && found.probes[m[1]].kind == "" {
				if found.probes == nil {
					found.probes = map[string]failedProbe{}
				}
				found.probes[m[1]] = failedProbe{m[2], probeWords(events, m[1], m[2]), lastSeen(*e)}
			}
		case e.Reason == "NodeNotReady":
			found.nodeSilent = true
		case stages[e.Reason] == 0 || kubeletBehind.MatchString(e.Message):
		case newest == nil:
			newest, chosen = e, trouble{reason: e.Reason, message: e.Message}
		case stages[e.Reason] != stages[newest.Reason] || lastSeen(*newest).Sub(lastSeen(*e)) > eventCounts:
		case before(e.Message, chosen.message):
			chosen = trouble{reason: e.Reason, message: e.Message}
		}
	}
	found.trouble = chosen
	return found
}

// before reports whether one message is to be shown and not the other. That something timed out is
// the consequence of the others.
func before(a, b string) bool {
	late := func(s string) bool { return strings.HasPrefix(s, "Unable to attach or mount volumes") }
	if late(a) != late(b) {
		return late(b)
	}
	return a < b
}

// probeWords returns the newest words of a probe. The Events are sorted.
func probeWords(events []corev1.Event, container, kind string) string {
	for _, e := range events {
		which, words, ok := strings.Cut(e.Message, " probe failed: ")
		if ok && e.Reason == "Unhealthy" && strings.EqualFold(which, kind) && e.InvolvedObject.FieldPath == "spec.containers{"+container+"}" {
			return strings.TrimSpace(words)
		}
	}
	return ""
}

func lastSeen(e corev1.Event) time.Time {
	last := e.LastTimestamp.Time
	if last.Before(e.EventTime.Time) {
		last = e.EventTime.Time
	}
	if e.Series != nil && last.Before(e.Series.LastObservedTime.Time) {
		last = e.Series.LastObservedTime.Time
	}
	return last
}

// creating reports whether nothing of a pod has ever run: its volumes or its network are missing.
func creating(pod *corev1.Pod) bool {
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if s.State.Waiting == nil || !starting(s.State.Waiting.Reason) || s.LastTerminationState.Terminated != nil {
			return false
		}
	}
	return true
}

// hint says what a pod waits for that may still come by itself, or "".
func hint(rev *servingv1.Revision, pod *corev1.Pod, n news) string {
	switch user := rev.Spec.ServingContainer(); {
	case pod == nil || n.pod != pod.UID:
		return ""
	case n.nodeSilent:
		return fmt.Sprintf("Node %q does not answer: `kubectl describe node` says since when", pod.Spec.NodeName)
	case pod.Spec.NodeName != "" && len(pod.Status.ContainerStatuses) == 0 && pod.Status.StartTime == nil:
		return fmt.Sprintf("Node %q has not taken the pod: `kubectl describe node` says whether it is ready", pod.Spec.NodeName)
	case user == nil || !started(pod):
		return ""
	default:
		name, fault := user.Name, "does not take connections on port "+fmt.Sprint(rev.Spec.Port())
		if p := user.ReadinessProbe; p != nil {
			text, elsewhere := probeText(p, rev.Spec.Port())
			if text = "does not pass its readiness probe (" + text + ")"; elsewhere {
				text += ", or " + fault
			}
			fault = text
		}
		for _, s := range pod.Status.ContainerStatuses {
			i := slices.IndexFunc(rev.Spec.Containers, func(c corev1.Container) bool { return c.Name == s.Name && c.StartupProbe != nil })
			if i >= 0 && s.Started != nil && !*s.Started {
				text, _ := probeText(rev.Spec.Containers[i].StartupProbe, rev.Spec.Port())
				name, fault = s.Name, "does not pass its startup probe ("+text+")"
				break
			}
		}
		return fmt.Sprintf("Container %q runs and %s", name, fault)
	}
}

// probeText describes a probe, and reports whether it does not ask the serving port.
func probeText(p *corev1.Probe, serving int32) (text string, elsewhere bool) {
	p = p.DeepCopy()
	resolveProbe(p, serving)
	var port int32
	switch {
	case p.HTTPGet != nil:
		port = p.HTTPGet.Port.IntVal
		text = fmt.Sprintf("HTTP GET %s, port %d", cmp.Or(p.HTTPGet.Path, "/"), port)
	case p.GRPC != nil:
		port = p.GRPC.Port
		text = fmt.Sprintf("gRPC, port %d", port)
	case p.Exec != nil:
		text = "command " + strings.Join(p.Exec.Command[:min(1, len(p.Exec.Command))], "")
	case p.TCPSocket != nil:
		port = p.TCPSocket.Port.IntVal
		text = fmt.Sprintf("TCP, port %d", port)
	default:
		port = serving
		text = fmt.Sprintf("TCP, port %d", port)
	}
	return text, port != serving
}
