package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"knative.dev/pkg/apis"

	autoscaling "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	serving "ebb.dev/ebb/api/serving/v1"
	view "ebb.dev/ebb/api/view/v1alpha1"
)

// newestChanges is how many events of a Revision are shown, newestDecisions how many decisions.
const (
	newestChanges   = 5
	newestDecisions = 8
)

// explanation is the answer of `explain`, as -o json writes it.
type explanation struct {
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	URL       string `json:"url,omitempty"`
	// Answer is one sentence.
	Answer string `json:"answer"`
	// Warning says why the rest may be old, or why there is no history.
	Warning  string    `json:"warning,omitempty"`
	Now      *view.Now `json:"now,omitempty"`
	Problems []problem `json:"problems,omitempty"`
	// Advice is what can be done about them.
	Advice    string              `json:"advice,omitempty"`
	Revisions []explainedRevision `json:"revisions"`
}

// problem is a condition that is not True.
type problem struct {
	Of      string `json:"of"`
	Type    string `json:"type"`
	Status  string `json:"status"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

type explainedRevision struct {
	Name    string   `json:"name"`
	Percent int64    `json:"trafficPercent"`
	Tags    []string `json:"tags,omitempty"`
	// Wanted pods are awake or asleep; Ready ones are awake.
	Wanted int32 `json:"wantedPods"`
	Ready  int32 `json:"readyPods"`
	Asleep int32 `json:"asleepPods"`
	// Levels says how they sleep, such as "2 frozen".
	Levels string `json:"asleep,omitempty"`
	// Bare says why there is no Deployment.
	Bare string `json:"noDeployment,omitempty"`
	// Path says who takes requests: "Serve", pods, or "Proxy", activators.
	Path     string             `json:"mode,omitempty"`
	Decision *explainedDecision `json:"decision,omitempty"`
	// Judged is what the judge of a rollout counts, while there is one.
	Judged *judged  `json:"judged,omitempty"`
	Limits []string `json:"limits,omitempty"`
	// Formula is what the load alone asks for, 0 if that is not known. Advice is what can be done
	// about a limit.
	Formula int32  `json:"formulaPods,omitempty"`
	Advice  string `json:"advice,omitempty"`
	// Nodes are those with pods of the Revision that do not answer.
	Nodes []view.SilentNode `json:"silentNodes,omitempty"`
	// History is the decisions, the newest first. Without it, Changes are the newest events.
	History []view.Decision `json:"history,omitempty"`
	Changes []change        `json:"changes,omitempty"`
}

// judged is how requests ended in the newest Seconds, by who is to blame.
type judged struct {
	Seconds  int      `json:"seconds"`
	Requests uint64   `json:"requests"`
	Failed   uint64   `json:"failed"`
	P99Ms    *float64 `json:"p99Ms,omitempty"`
	// ByTag are those that came by a tag, in none of the others.
	ByTag       uint64 `json:"byTag,omitempty"`
	ByTagFailed uint64 `json:"byTagFailed,omitempty"`
}

type explainedDecision struct {
	Time   time.Time `json:"time"`
	Rule   string    `json:"rule"`
	Reason string    `json:"reason"`
	// Standby is the reason for the pods that sleep.
	Standby string            `json:"standby,omitempty"`
	Inputs  map[string]string `json:"inputs,omitempty"`
}

type change struct {
	Time    time.Time `json:"time"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
}

// explain answers why a Service has as many pods as it has.
func explain(about *subject) *explanation {
	s := about.service
	x := &explanation{Namespace: s.Namespace, Service: s.Name, Warning: about.away, Problems: problems("Service "+s.Name, s.Status.Conditions)}
	if s.Status.URL != nil {
		x.URL = s.Status.URL.String()
	}
	if x.Warning == "" {
		x.Warning = about.viewless
	}
	for _, r := range about.revisions {
		x.Revisions = append(x.Revisions, explainRevision(r))
		x.remember(about.view)
		for _, p := range slices.Concat(problems("Revision "+r.Name, r.Status.Conditions), waitsFor(r)) {
			// The Service repeats what its Revisions say, or says that there is none to use.
			x.Problems = slices.DeleteFunc(x.Problems, func(of problem) bool {
				return of.Of == "Service "+s.Name && (p.Message != "" && strings.Contains(of.Message, p.Message) ||
					of.Reason == serving.ReasonRevisionMissing && strings.HasPrefix(of.Message, "Configuration "))
			})
			x.Problems = append(x.Problems, p)
			if p.Type == string(serving.RevisionConditionContainerHealthy) && p.Status == string(corev1.ConditionFalse) {
				x.Advice = whereToLook(r)
			}
		}
	}
	if _, _, guarded := names.Lookup(s.Annotations, names.RolloutGuardAnnotation); guarded && x.Advice == "" {
		if reason := s.Status.GetCondition(apis.ConditionReady).GetReason(); reason == serving.ReasonRolloutInProgress || reason == serving.ReasonWentBack {
			x.Advice = fmt.Sprintf("To overrule the judge: kubectl ebb -n %s rollout promote %s, or back", s.Namespace, s.Name)
		}
	}
	x.Answer = x.answer(s)
	return x
}

// waitsFor returns what a pod waits for that requests wait for. The controller adds it to what the
// autoscaler says in the condition Active.
func waitsFor(r revision) []problem {
	c := r.Status.GetCondition(serving.RevisionConditionActive)
	if r.scaler == nil || c == nil || !c.IsUnknown() {
		return nil
	}
	said := r.scaler.Status.GetCondition(autoscaling.PodAutoscalerConditionActive).GetMessage()
	hint, same := strings.CutPrefix(c.Message, said)
	hint = strings.TrimSpace(hint)
	if !same || hint == "" || hint == r.Status.GetCondition(serving.RevisionConditionContainerHealthy).GetMessage() {
		return nil
	}
	return []problem{{"Revision " + r.Name, string(c.Type), string(c.Status), c.Reason, hint}}
}

// whereToLook says what tells more of a container that does not run.
func whereToLook(r revision) string {
	container := "user-container"
	if len(r.Spec.Containers) > 0 {
		container = cmp.Or(r.Spec.ServingContainer().Name, container)
	}
	return fmt.Sprintf("More: kubectl -n %[1]s describe pods -l %[2]s=%[3]s, and kubectl -n %[1]s logs -l %[2]s=%[3]s -c %[4]s --previous",
		r.Namespace, names.RevisionLabel, r.Name, container)
}

// remember adds to the last revision what the API tells of it.
func (x *explanation) remember(v *view.ServiceView) {
	if v == nil {
		return
	}
	x.Now = &v.Now
	last := &x.Revisions[len(x.Revisions)-1]
	for _, r := range v.Revisions {
		if r.Name == last.Name {
			last.Nodes, last.Judged = r.Nodes, judgedOf(r.Judged)
		}
		if r.Name == last.Name && len(r.History) > 0 {
			last.History = slices.Clone(r.History)
			slices.Reverse(last.History)
			last.Changes = nil
			last.follow(&last.History[0])
		}
	}
}

// judgedOf adds up the seconds; nil if nobody judges.
func judgedOf(j *view.Judged) *judged {
	if j == nil || len(j.Seconds) == 0 {
		return nil
	}
	out, times := &judged{Seconds: len(j.Seconds)}, (&view.Second{}).Latency()
	for i := range j.Seconds {
		s := &j.Seconds[i]
		out.Requests, out.Failed = out.Requests+s.Good+s.Failed, out.Failed+s.Failed
		out.ByTag, out.ByTagFailed = out.ByTag+s.Tagged[0]+s.Tagged[1], out.ByTagFailed+s.Tagged[1]
		latency := s.Latency()
		times.Merge(&latency)
	}
	if took, ok := times.Percentile(0.99); ok {
		out.P99Ms = ptr.To(view.Rounded(float64(took) / float64(time.Millisecond)))
	}
	return out
}

// follow replaces the decision of the status, which is written when the scale or the rule changes,
// by the newest one.
func (r *explainedRevision) follow(d *view.Decision) {
	standby := ""
	if d.Standby != nil {
		standby = d.Standby.Reason
	}
	r.Decision = &explainedDecision{d.First.UTC(), d.Rule, d.Reason, standby, map[string]string{"stable": number(d.Stable), "panic": number(d.Panic), "metric": d.Metric,
		"queued": number(d.Queued), "target": number(d.Target), "total": number(d.Capacity), "ready": strconv.Itoa(int(d.Ready)),
		"excessBurst": number(d.ExcessBurst), "panicking": strconv.FormatBool(d.Panicking), "missing": strconv.FormatBool(d.Incomplete)}}
	if r.Formula = d.Formula; d.Rule == "max-scale" && d.Formula > d.Want {
		r.Advice = fmt.Sprintf("the load asks for %s: raise autoscaling.knative.dev/max-scale, or let a pod take more at once (containerConcurrency)", pods(d.Formula))
	}
}

func problems(of string, conditions []apis.Condition) (all []problem) {
	for _, c := range conditions {
		// A Revision without requests is not Active, which is no problem. Ready follows from the
		// rest.
		if c.IsTrue() || c.Type == serving.RevisionConditionActive || c.Type == apis.ConditionReady || c.Severity == apis.ConditionSeverityInfo {
			continue
		}
		all = append(all, problem{of, string(c.Type), string(c.Status), c.Reason, strings.TrimSpace(c.Message)})
	}
	// While one fails, what is only not known yet is no reason: ResourcesAvailable is Deploying
	// until a pod is ready.
	if slices.ContainsFunc(all, func(p problem) bool { return p.Status == string(corev1.ConditionFalse) }) {
		all = slices.DeleteFunc(all, func(p problem) bool { return p.Status == string(corev1.ConditionUnknown) && p.Message == "" })
	}
	return all
}

func explainRevision(r revision) explainedRevision {
	x := explainedRevision{Name: r.Name, Percent: r.percent, Tags: r.tags, Limits: limits(r.Revision), Changes: changes(r.events)}
	if r.scaler == nil {
		return x
	}
	status := &r.scaler.Status
	x.Ready, x.Wanted = ptr.Deref(status.ActualScale, 0), ptr.Deref(status.DesiredScale, 0)
	x.Path = string(status.Mode)
	if r.bare {
		x.Bare = whyBare(r, x.Wanted)
	}
	if x.Asleep = ptr.Deref(status.AsleepReplicas, 0); x.Asleep > 0 {
		x.Levels = status.Asleep
	}
	if d := status.Decision; d != nil {
		reason, standby, _ := strings.Cut(d.Reason, "; asleep: ")
		x.Decision = &explainedDecision{d.Time.UTC(), d.Rule, reason, standby, d.Inputs}
	}
	return x
}

// whyBare says why a revision has no Deployment.
func whyBare(r revision, wanted int32) string {
	switch {
	case r.Annotations[names.ParkedAnnotation] != "":
		return "the Revision is parked: no Route has led to it"
	case wanted > 0:
		return "the controller is to make it for the pods that are wanted"
	}
	return "it has had no pod for deployment-retention-period; the next request has the Deployment made again"
}

// limits lists what bounds the number of pods, as the template sets it.
func limits(r *serving.Revision) (all []string) {
	keys := []string{names.MinScaleAnnotation, names.MaxScaleAnnotation, names.InitialScaleAnnotation, names.ActivationScaleAnnotation,
		names.ScaleDownDelayAnnotation, names.TargetAnnotation, names.WindowAnnotation, names.MetricsAnnotation}
	for _, key := range keys {
		if value, _, _ := names.Lookup(r.Annotations, key); value != "" {
			_, name, _ := strings.Cut(key, "/")
			all = append(all, name+" "+value)
		}
	}
	if most := ptr.Deref(r.Spec.ContainerConcurrency, 0); most > 0 {
		all = append(all, fmt.Sprintf("containerConcurrency %d", most))
	}
	return all
}

// changes returns the newest events, the newest first.
func changes(events []corev1.Event) (all []change) {
	for _, e := range events {
		last := e.LastTimestamp.Time
		if e.Series != nil {
			last = e.Series.LastObservedTime.Time
		}
		if last.IsZero() {
			last = e.EventTime.Time
		}
		all = append(all, change{last.UTC(), e.Reason, e.Message})
	}
	slices.SortStableFunc(all, func(a, b change) int { return b.Time.Compare(a.Time) })
	return all[:min(len(all), newestChanges)]
}

// answer is the first line.
func (x *explanation) answer(s *serving.Service) string {
	if ready := s.Status.GetCondition(apis.ConditionReady); !ready.IsTrue() {
		if ready == nil {
			return x.Service + " was not looked at yet: does the controller run?"
		}
		return fmt.Sprintf("%s is not ready: %s.", x.Service, strings.TrimSuffix(cmp.Or(strings.TrimSpace(ready.Message), ready.Reason), "."))
	}
	var main *explainedRevision
	var awake, ready, asleep int32
	for i := range x.Revisions {
		r := &x.Revisions[i]
		awake, ready, asleep = awake+max(r.Wanted-r.Asleep, 0), ready+r.Ready, asleep+r.Asleep
		if main == nil || r.Percent > main.Percent {
			main = r
		}
	}
	if main == nil || main.Decision == nil {
		return x.Service + ": nothing was decided yet."
	}
	var has string
	switch {
	case awake == 0 && asleep > 0:
		has = fmt.Sprintf("has %s asleep, and the next request wakes one", pods(asleep))
	case awake == 0:
		has = "is at zero, and the next request starts a pod"
	case ready < awake:
		has = fmt.Sprintf("wants %s and has %d ready", pods(awake), ready)
	default:
		has = "has " + pods(ready)
	}
	if awake > 0 && asleep > 0 {
		has += fmt.Sprintf(", and %d asleep", asleep)
	}
	why, _, _ := strings.Cut(main.Decision.Reason, " (")
	if len(x.Revisions) > 1 {
		return fmt.Sprintf("%s %s. Most requests go to %s: %s.", x.Service, has, main.Name, why)
	}
	return fmt.Sprintf("%s %s: %s.", x.Service, has, why)
}
