package names

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"ebb.dev/ebb/standby"
	"ebb.dev/ebb/wire"
)

// Annotation is an annotation that Ebb reads or writes. Parsers have its older spellings and its
// bounds from here, and docs/reference/annotations.md everything.
type Annotation struct {
	Key string
	// Older are spellings that are read if the key itself is absent.
	Older []string
	// On says which objects it stands on, or that users do not write it.
	On     string
	Values Values
	// Default is what counts if it is absent. `config-...` names the setting.
	Default string
	Effect  string
}

// Where annotations stand.
const (
	onTemplate = "on the template or a Revision"
	onLive     = "on the template or a Revision, or on a Service or Configuration for all its Revisions"
	onRevision = "on a Revision"
	onRoute    = "on a Service or Route"
	onHost     = "on a Service, Route or DomainMapping"
	setByEbb   = "set by Ebb, not by users"
)

// Values are the legal values of an annotation.
type Values struct {
	// Text says which they are.
	Text string
	// min and max bound a number.
	min, max float64
	// minTime and maxTime bound a duration; whole refuses fractions of seconds.
	minTime, maxTime time.Duration
	whole            bool
}

func anyOf(words ...string) Values { return Values{Text: strings.Join(words, ", ")} }

func wholeNumber(lo, hi int32) Values {
	return Values{Text: between(strconv.Itoa(int(lo)), strconv.Itoa(int(hi)), hi == math.MaxInt32), min: float64(lo), max: float64(hi)}
}

func number(lo, hi float64) Values {
	return Values{Text: "a number, " + between(fmt.Sprint(lo), fmt.Sprint(hi), hi == math.MaxFloat64), min: lo, max: hi}
}

func duration(lo, hi time.Duration, whole bool) Values {
	v := Values{Text: between(lo.String(), hi.String(), hi == noMaxTime), minTime: lo, maxTime: hi, whole: whole}
	if whole {
		v.Text += ", whole seconds"
	}
	return v
}

func between(lo, hi string, unbounded bool) string {
	if unbounded {
		return lo + " or more"
	}
	return lo + " to " + strings.TrimSuffix(hi, "0m0s")
}

var hookValues = Values{Text: fmt.Sprintf("a call such as POST :8000/sleep 5s: method, port, path and bound, of which only the path must be there; at most %s", standby.MaxHookTime)}

// Annotations are all annotations that Ebb reads or writes on objects of users.
var Annotations = slices.Concat([]Annotation{
	{Key: ClassAnnotation, On: onTemplate, Values: anyOf(ClassKPA, ClassHPA, "a class outside knative.dev"),
		Default: "`pod-autoscaler-class` in config-autoscaler", Effect: "Who scales the revision."},
	{Key: MinScaleAnnotation, Older: older("minScale"), On: onTemplate, Values: wholeNumber(0, math.MaxInt32),
		Default: "`min-scale` in config-autoscaler", Effect: "Minimum number of pods while a Route leads to the revision."},
	{Key: MaxScaleAnnotation, Older: older("maxScale"), On: onTemplate, Values: wholeNumber(0, math.MaxInt32),
		Default: "`max-scale` in config-autoscaler", Effect: "Maximum number of pods; 0 is none. At most `max-scale-limit` in config-autoscaler."},
	{Key: InitialScaleAnnotation, Older: older("initialScale"), On: onTemplate, Values: wholeNumber(0, math.MaxInt32),
		Default: "`initial-scale` in config-autoscaler", Effect: "Pods that must be ready once before the revision is Ready. 0 needs `allow-zero-initial-scale` in config-autoscaler."},
	{Key: ActivationScaleAnnotation, On: onTemplate, Values: wholeNumber(MinActivationScale, math.MaxInt32),
		Default: "none", Effect: "Minimum number of pods as soon as there is any load."},
	{Key: ScaleDownDelayAnnotation, Older: older("scaleDownDelay"), On: onTemplate, Values: duration(0, MaxScaleDownDelay, true),
		Default: "`scale-down-delay` in config-autoscaler", Effect: "Time for which the highest wanted scale is kept."},
	{Key: MetricAnnotation, On: onTemplate, Values: Values{Text: MetricConcurrency + ", " + MetricRPS + "; for " + ClassHPA + " " + MetricCPU + ", " + MetricMemory + " or a metric of its own"},
		Default: MetricConcurrency, Effect: "What the revision is scaled by."},
	{Key: MetricAggregationAnnotation, Older: older("metricAggregationAlgorithm"), On: onTemplate,
		Values: anyOf(AggregationLinear, AggregationWeightedExponential), Default: AggregationLinear, Effect: "How load is averaged over a window."},
	{Key: TargetAnnotation, On: onTemplate, Values: number(MinTarget, math.MaxFloat64),
		Default: "containerConcurrency, or `container-concurrency-target-default` or `requests-per-second-target-default` in config-autoscaler",
		Effect:  "Load of one pod, in the unit of the metric."},
	{Key: TargetUtilizationAnnotation, Older: older("targetUtilizationPercentage"), On: onTemplate, Values: number(1, 100),
		Default: "`container-concurrency-target-percentage` in config-autoscaler", Effect: "Percentage of the target that a pod is to have."},
	{Key: TargetBurstCapacityAnnotation, Older: older("targetBurstCapacity"), On: onTemplate,
		Values:  Values{Text: "-1, or a number, 0 or more", min: -math.MaxFloat64, max: math.MaxFloat64},
		Default: "`target-burst-capacity` in config-autoscaler", Effect: "Spare capacity, in requests, below which activators stay in the path. -1: always."},
	{Key: WindowAnnotation, On: onTemplate, Values: duration(MinStableWindow, MaxStableWindow, true),
		Default: "`stable-window` in config-autoscaler", Effect: "The stable window, over which load is averaged."},
	{Key: PanicWindowAnnotation, Older: older("panicWindowPercentage"), On: onTemplate, Values: number(1, 100),
		Default: "`panic-window-percentage` in config-autoscaler", Effect: "Length of the panic window in percent of the stable window."},
	{Key: PanicThresholdAnnotation, Older: older("panicThresholdPercentage"), On: onTemplate, Values: number(MinPanicThreshold, MaxPanicThreshold),
		Default: "`panic-threshold-percentage` in config-autoscaler", Effect: "Load, in percent of the ready capacity, above which panic mode starts."},
	{Key: ScaleToZeroRetentionAnnotation, Older: older("scaleToZeroPodRetentionPeriod"), On: onTemplate, Values: duration(0, MaxRetention, false),
		Default: "`scale-to-zero-pod-retention-period` in config-autoscaler", Effect: "Minimum time for which the last pod stays after the last request."},
	{Key: ProgressDeadlineAnnotation, On: onTemplate, Values: duration(0, noMaxTime, true),
		Default: "`progress-deadline` in config-deployment", Effect: "Time in which pods must become ready."},

	{Key: MetricsAnnotation, On: onTemplate, Values: Values{Text: fmt.Sprintf("at most %d entries such as concurrency=50, waiting@header=5, queue:length@prometheus:9000/metrics=5 shared", MaxMetrics)},
		Default: "none", Effect: "All that the revision is scaled by; the largest answer counts."},
	{Key: AdaptiveTargetAnnotation, On: onTemplate, Values: anyOf(AdaptiveTarget), Default: "none", Effect: "Learns the target for concurrency."},
	{Key: ScaleUpBurstAnnotation, On: onTemplate, Values: number(1, math.MaxFloat64), Default: "`scale-up-burst` in config-autoscaler",
		Effect: "Pods that the service may add at once."},
	{Key: ScaleUpPerSecondAnnotation, On: onTemplate, Values: number(0.01, math.MaxFloat64), Default: "`scale-up-per-second` in config-autoscaler",
		Effect: "Pods per second that it may add beyond that."},
	{Key: ScaleBufferAnnotation, On: onTemplate, Values: wholeNumber(0, math.MaxInt32), Default: "0", Effect: "How many more pods than are busy are kept."},
	{Key: MinScaleScheduleAnnotation, On: onLive, Values: Values{Text: "a schedule such as 0 8 * * 1-5 for 10h = 2"}, Default: "none",
		Effect: "Minimum number of pods at a time."},
	{Key: StandbyAnnotation, On: onTemplate, Values: Values{Text: "off, auto, or how many pods may sleep"}, Default: "`standby` in config-autoscaler",
		Effect: "Which pods sleep instead of being deleted."},
	{Key: StandbyLevelAnnotation, On: onTemplate, Values: anyOf("warm", "frozen", "compressed"), Default: "compressed", Effect: "How deeply pods may sleep."},
	{Key: StandbyForAnnotation, On: onTemplate, Values: duration(time.Second, noMaxTime, false), Default: auto,
		Effect: "How long a pod sleeps, at most `standby-max` in config-autoscaler; " + auto + " leaves it to the autoscaler."},
	{Key: StandbySleepHookAnnotation, On: onTemplate, Values: hookValues, Default: "none",
		Effect: "An HTTP call to the program before a pod sleeps. If it fails, the pod stays awake."},
	{Key: StandbyWakeHookAnnotation, On: onTemplate, Values: hookValues, Default: "none",
		Effect: "An HTTP call to the program after a pod woke, before it gets a request."},
	{Key: BusyForAnnotation, On: onTemplate, Values: duration(time.Second, MaxBusyFor, false), Default: "none",
		Effect: "How long a response's `" + wire.HeaderBusy + "` keeps its pod at most from sleeping and from being scaled away. Class " + ClassKPA + " only."},
	{Key: StandbyScheduleAnnotation, On: onLive, Values: Values{Text: "a schedule such as 0 8 * * 1-5 for 10h = 2"}, Default: "none",
		Effect: "How many pods are at least asleep at a time."},

	{Key: StartupCPUAnnotation, On: onTemplate, Values: Values{Text: "a quantity such as 1 or 500m, 0 to `startup-cpu-max` in config-autoscaler; 0 is none"},
		Default: "`startup-cpu` in config-autoscaler", Effect: "The CPU limit of the serving container until it answers, if its own is lower."},

	{Key: WaitingPageAnnotation, On: onTemplate, Values: Values{Text: fmt.Sprintf("HTML of 1 to %d bytes", MaxPageBytes)}, Default: "none", Effect: "The waiting page."},
	{Key: WaitingPageFromAnnotation, On: onTemplate, Values: Values{Text: "CONFIGMAP/KEY, in the same namespace"}, Default: "none", Effect: "Where the waiting page stands."},
	{Key: WaitingPageAfterAnnotation, On: onTemplate, Values: duration(0, MaxColdWait, false), Default: DefaultPageAfter.String(),
		Effect: "How long a browser waits for a pod before it gets the page."},
	{Key: WaitingPageStatusAnnotation, On: onTemplate, Values: anyOf("503", "200"), Default: "503", Effect: "The status of the page."},
	{Key: FallbackServiceAnnotation, On: onTemplate, Values: Values{Text: "another Service in the same namespace"}, Default: "none",
		Effect: "The Service that gets requests which find no pod in time."},
	{Key: FallbackAfterAnnotation, On: onTemplate, Values: duration(0, MaxColdWait, false), Default: DefaultFallbackAfter.String(),
		Effect: "How long a request waits for a pod before it goes there."},
	{Key: NeverWakePathsAnnotation, On: onTemplate, Values: Values{Text: fmt.Sprintf("at most %d paths, each with at most one *", MaxPatterns)}, Default: "none",
		Effect: "Requests for these paths wake no pod."},
	{Key: NeverWakeAgentsAnnotation, On: onTemplate, Values: Values{Text: fmt.Sprintf("at most %d texts", MaxPatterns)},
		Default: "`never-wake-agents` in config-defaults", Effect: "Nor do those whose User-Agent contains one of these."},
	{Key: NeverWakeStatusAnnotation, On: onTemplate, Values: anyOf("503", "404", "204"), Default: "503", Effect: "What these requests get."},
	{Key: MaxWaitingAnnotation, On: onTemplate, Values: wholeNumber(1, math.MaxInt32), Default: "`max-waiting` in config-defaults",
		Effect: "Requests that may wait in one activator."},
	{Key: MaxWaitAnnotation, On: onTemplate, Values: duration(time.Second, MaxColdWait, false), Default: "`max-wait` in config-defaults",
		Effect: "How long a request may wait for a pod."},
}, handlingAnnotations, []Annotation{
	{Key: RecordsAnnotation, On: onTemplate, Values: anyOf(RecordsNone, RecordsAsynchronous, RecordsAll), Default: RecordsAsynchronous,
		Effect: "Which requests the API view.ebb.dev has records of."},
	{Key: WarmUpAnnotation, On: onTemplate, Values: duration(0, MaxWarmUp, false), Default: wire.DefaultWarmUp.String(),
		Effect: "How long the times of a pod's requests do not count for a rollout guard, from its first request on and from the first after a sleep."},
	{Key: ShimAnnotation, On: onTemplate, Values: anyOf(ShimModes...), Default: "none", Effect: "Puts the shim before the program."},
	{Key: ConcurrencyVariableAnnotation, On: onTemplate, Values: Values{Text: "the name of a variable"}, Default: "none",
		Effect: "The variable in which the container finds containerConcurrency."},
	{Key: FeatureHTTPFullDuplexAnnotation, On: onTemplate, Values: anyOf("enabled"), Default: "none",
		Effect: "None: a response may always begin before its request has ended."},
	{Key: FeaturePodInfoAnnotation, On: onTemplate, Values: anyOf("enabled"), Default: "none",
		Effect: "Mounts the pod's annotations into queue-proxy, if `queueproxy.mount-podinfo` in config-features is Allowed."},
	{Key: SidecarCPURequestAnnotation, On: onTemplate, Values: aQuantity, Default: "`queue-sidecar-cpu-request` in config-deployment", Effect: "CPU request of queue-proxy."},
	{Key: SidecarCPULimitAnnotation, On: onTemplate, Values: aQuantity, Default: "`queue-sidecar-cpu-limit` in config-deployment", Effect: "CPU limit of queue-proxy."},
	{Key: SidecarMemoryRequestAnnotation, On: onTemplate, Values: aQuantity, Default: "`queue-sidecar-memory-request` in config-deployment", Effect: "Memory request of queue-proxy."},
	{Key: SidecarMemoryLimitAnnotation, On: onTemplate, Values: aQuantity, Default: "`queue-sidecar-memory-limit` in config-deployment", Effect: "Memory limit of queue-proxy."},
	{Key: SidecarStorageRequestAnnotation, On: onTemplate, Values: aQuantity, Default: "`queue-sidecar-ephemeral-storage-request` in config-deployment",
		Effect: "Ephemeral storage request of queue-proxy."},
	{Key: SidecarStorageLimitAnnotation, On: onTemplate, Values: aQuantity, Default: "`queue-sidecar-ephemeral-storage-limit` in config-deployment",
		Effect: "Ephemeral storage limit of queue-proxy."},
	{Key: SidecarResourcePercentAnnotation, Older: []string{SidecarResourcePercentAnnotationAlt}, On: onTemplate, Values: number(0.1, 100), Default: "none",
		Effect: "Deprecated: resources of queue-proxy in percent of the container's."},
	{Key: NoGCAnnotation, On: onRevision, Values: anyOf("true"), Default: "none", Effect: "The Revision is neither deleted nor parked when no Route leads to it, and keeps its Deployment and its Service at zero."},

	{Key: RolloutDurationAnnotation, Older: []string{RolloutDurationAnnotationAlt}, On: onRoute, Values: duration(0, noMaxTime, true),
		Default: "`rollout-duration` in config-network", Effect: "Time over which traffic moves to a new latest revision."},
	{Key: RolloutGuardAnnotation, On: onRoute, Values: Values{Text: "on, off, or bounds such as errors<1%, p99<2x, starts<60s, requests>100"}, Default: "off",
		Effect: "What a new latest revision must keep to while traffic moves to it; else it goes back. Without a rollout duration it takes 2m."},
	{Key: RolloutStepsAnnotation, On: onRoute, Values: Values{Text: "at most 20 ascending percentages with commas, each with a time, a number of requests, both or neither: 1% 30s, 10% 5m requests>1000, 50%"}, Default: "even steps",
		Effect: "Shares of a new latest revision on the way to all requests. One without a time has an equal part of the rollout duration. A number of requests is waited for besides, and needs a rollout guard. A first step of 0% needs a tag that follows the latest revision: its requests are judged."},
	{Key: RolloutOverruleAnnotation, On: onRoute, Values: Values{Text: "promote REVISION, back REVISION"}, Default: "none",
		Effect: "A person's word about the latest revision: it goes on unjudged, or goes back. Nothing if it names another one."},
	{Key: AsyncAnnotation, On: onRoute, Values: anyOf(string(AsyncAllowed), string(AsyncAlways), string(AsyncNever)), Default: string(AsyncNever),
		Effect: "Which requests are asynchronous: those that prefer it, all, none."},
	{Key: AsyncCallbackAnnotation, On: onRoute, Values: Values{Text: fmt.Sprintf("a URL of at most %d bytes", maxCallback)}, Default: "none", Effect: "Who gets the results."},
	{Key: AsyncCallbackHostsAnnotation, On: onRoute, Values: Values{Text: "hosts, `*.host` or `*`, with commas"}, Default: "none",
		Effect: "Hosts at which clients may name callbacks with `Ebb-Callback`."},
	{Key: AsyncConcurrencyAnnotation, On: onRoute, Values: wholeNumber(1, 10000), Default: "`concurrency` in config-courier for each ready pod",
		Effect: "Calls that are delivered at once."},
	{Key: AsyncRateAnnotation, On: onRoute, Values: number(0.001, 1e6), Default: "none", Effect: "Calls that are delivered per second."},
	{Key: SchedulesAnnotation, On: onRoute, Values: Values{Text: `a list such as [{name: daily, cron: "0 8 * * *"}]`}, Default: "none", Effect: "Calls on time."},
	{Key: HTTPProtocolAnnotation, Older: []string{HTTPProtocolAnnotationAlt}, On: onHost, Values: anyOf("Enabled", "Redirected"),
		Default: "`http-protocol` in config-network", Effect: "What plain HTTP does on the external hosts."},
	{Key: DisableTLSAnnotation, Older: []string{DisableTLSAnnotationAlt, DisableTLSAnnotationAlt2}, On: onHost, Values: anyOf("true", "false"),
		Default: "false", Effect: "The external hosts get no certificate."},
	{Key: RestingAnnotation, On: onRoute, Values: anyOf("enabled", "disabled"), Default: "enabled",
		Effect: "disabled: the hosts have HTTPRoutes of their own at all times, whatever `resting-routes` in config-gateway says."},

	{Key: CreatorAnnotation, On: setByEbb, Effect: "Who made the object."},
	{Key: LastModifierAnnotation, On: setByEbb, Effect: "Who changed its spec last."},
	{Key: RoutesAnnotation, On: setByEbb, Effect: "The Routes that lead to a Configuration or Revision."},
	{Key: RoutingStateModifiedAnnotation, On: setByEbb, Effect: "When the label " + RoutingStateLabel + " changed."},
	{Key: ParkedAnnotation, On: setByEbb, Effect: "The Revision's children are taken away until a Route leads to it."},
	{Key: WentBackAnnotation, On: setByEbb, Effect: "On a Revision: why Routes that follow the latest one do not lead to it."},
	{Key: FallbackRevisionAnnotation, On: setByEbb, Effect: "In the status of a Revision: the revision of its fallback Service."},
	{Key: InitializedAnnotation, On: setByEbb, Effect: "On a PodAutoscaler: the revision had its initial pods once."},
	{Key: AwakeRequestsAnnotation, On: setByEbb, Effect: "On a pod that has slept for long: its resource requests while it is awake."},
	{Key: StartupLimitAnnotation, On: setByEbb, Effect: "On a pod: which container has more CPU while it starts, its CPU limit, and the one that it starts with."},
	{Key: PodKeyAnnotation, On: setByEbb, Effect: "On a Deployment or pod: which key of the namespace its queue-proxy proves itself with; nothing of the key."},
	{Key: RevisionHashAnnotation, On: setByEbb, Effect: "On a Deployment: the hash of what of it comes from the Revision itself."},
	{Key: SystemTLSAnnotation, On: setByEbb, Effect: "On a Deployment or Service: its pods serve TLS."},
	{Key: PlanAnnotation, On: setByEbb, Effect: "In the status of a Route: where activators send requests for its hosts."},
	{Key: NeededByAnnotation, On: setByEbb, Effect: "On the Service of a Revision, where hosts may rest: which Routes have HTTPRoutes that may name it."},
	{Key: BridgeOfAnnotation, On: setByEbb, Effect: "On an HTTPRoute that leads the hosts of a Route to activators for a while: which Route."},
	{Key: BridgeAfterAnnotation, On: setByEbb, Effect: "On the same: which HTTPRoutes of the Route were there before."},
	{Key: RolloutAnnotation, On: setByEbb, Effect: "On an HTTPRoute, or in the status of a Route that may have none: how far a gradual rollout is."},
})

var aQuantity = Values{Text: "a quantity such as 100m or 64Mi, not negative"}

func older(camel string) []string { return []string{AutoscalingGroup + "/" + camel} }

// known are the Annotations by their keys.
var known = func() map[string]*Annotation {
	m := map[string]*Annotation{}
	for i := range Annotations {
		m[Annotations[i].Key] = &Annotations[i]
	}
	return m
}()
