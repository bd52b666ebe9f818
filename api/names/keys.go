// Package names owns every name and key that Ebb shares with its users and their tools: child
// object names, label and annotation keys, finalizers, and what annotations mean (Of).
//
// Reads: nothing but its arguments. Writes: nothing. Never: acts on what it read.
package names

// API groups.
const (
	ServingGroup     = "serving.knative.dev"
	AutoscalingGroup = "autoscaling.knative.dev"
	NetworkingGroup  = "networking.knative.dev"

	AutoscalingInternalGroup = "autoscaling.internal.knative.dev"
	NetworkingInternalGroup  = "networking.internal.knative.dev"
)

// SystemNamespace is where Ebb's own objects live.
const SystemNamespace = "knative-serving"

// Labels of the serving group. ConfigurationLabel to RoutingStateLabel stand on Revisions and what
// they own.
const (
	ServiceLabel                 = ServingGroup + "/service"
	ServiceUIDLabel              = ServingGroup + "/serviceUID"
	ConfigurationLabel           = ServingGroup + "/configuration"
	ConfigurationUIDLabel        = ServingGroup + "/configurationUID"
	ConfigurationGenerationLabel = ServingGroup + "/configurationGeneration"
	RevisionLabel                = ServingGroup + "/revision"
	RevisionUIDLabel             = ServingGroup + "/revisionUID"
	RouteLabel                   = ServingGroup + "/route"
	RouteNamespaceLabel          = ServingGroup + "/routeNamespace"
	RoutingStateLabel            = ServingGroup + "/routingState"
	DomainMappingUIDLabel        = ServingGroup + "/domainMappingUID"
	DomainMappingNamespaceLabel  = ServingGroup + "/domainMappingNamespace"
	// DeploymentHashLabel stands on the Deployment only: the hash of the content Ebb wants it to
	// have.
	DeploymentHashLabel = ServingGroup + "/deployment-hash"
	// AppLabel is set to the revision's name unless the user's template sets it.
	AppLabel = "app"
)

// RoutingState says whether a Route leads to a Revision; it is the value of RoutingStateLabel.
type RoutingState string

const (
	// RoutingPending: never routed yet. Garbage collection treats it as active.
	RoutingPending RoutingState = "pending"
	// RoutingActive: a Route refers to it now.
	RoutingActive RoutingState = "active"
	// RoutingReserve: it was routed once and is not any more.
	RoutingReserve RoutingState = "reserve"
)

// Annotations of the serving group.
const (
	CreatorAnnotation              = ServingGroup + "/creator"
	LastModifierAnnotation         = ServingGroup + "/lastModifier"
	RoutesAnnotation               = ServingGroup + "/routes"
	RoutingStateModifiedAnnotation = ServingGroup + "/routingStateModified"
	LastPinnedAnnotation           = ServingGroup + "/lastPinned"
	NoGCAnnotation                 = ServingGroup + "/no-gc"
	RolloutDurationAnnotation      = ServingGroup + "/rollout-duration"
	RolloutDurationAnnotationAlt   = ServingGroup + "/rolloutDuration"
	ProgressDeadlineAnnotation     = ServingGroup + "/progress-deadline"
)

// Annotations of the autoscaling group: read on Revision templates, refused on Services,
// Configurations and Routes.
const (
	ClassAnnotation                = AutoscalingGroup + "/class"
	MinScaleAnnotation             = AutoscalingGroup + "/min-scale"
	MaxScaleAnnotation             = AutoscalingGroup + "/max-scale"
	InitialScaleAnnotation         = AutoscalingGroup + "/initial-scale"
	ActivationScaleAnnotation      = AutoscalingGroup + "/activation-scale"
	ScaleDownDelayAnnotation       = AutoscalingGroup + "/scale-down-delay"
	MetricAnnotation               = AutoscalingGroup + "/metric"
	MetricAggregationAnnotation    = AutoscalingGroup + "/metric-aggregation-algorithm"
	TargetAnnotation               = AutoscalingGroup + "/target"
	TargetUtilizationAnnotation    = AutoscalingGroup + "/target-utilization-percentage"
	TargetBurstCapacityAnnotation  = AutoscalingGroup + "/target-burst-capacity"
	WindowAnnotation               = AutoscalingGroup + "/window"
	PanicWindowAnnotation          = AutoscalingGroup + "/panic-window-percentage"
	PanicThresholdAnnotation       = AutoscalingGroup + "/panic-threshold-percentage"
	ScaleToZeroRetentionAnnotation = AutoscalingGroup + "/scale-to-zero-pod-retention-period"
)

// Autoscaler classes, metrics and aggregation algorithms.
const (
	ClassKPA = "kpa." + AutoscalingGroup
	ClassHPA = "hpa." + AutoscalingGroup

	MetricConcurrency = "concurrency"
	MetricRPS         = "rps"
	MetricCPU         = "cpu"
	MetricMemory      = "memory"

	AggregationLinear                 = "linear"
	AggregationWeightedExponential    = "weighted-exponential"
	AggregationWeightedExponentialAlt = "weightedExponential"
)

// Annotations of the sidecar and feature groups, read on Revision templates.
const (
	SidecarGroup = "queue.sidecar." + ServingGroup

	SidecarCPURequestAnnotation         = SidecarGroup + "/cpu-resource-request"
	SidecarCPULimitAnnotation           = SidecarGroup + "/cpu-resource-limit"
	SidecarMemoryRequestAnnotation      = SidecarGroup + "/memory-resource-request"
	SidecarMemoryLimitAnnotation        = SidecarGroup + "/memory-resource-limit"
	SidecarStorageRequestAnnotation     = SidecarGroup + "/ephemeral-storage-resource-request"
	SidecarStorageLimitAnnotation       = SidecarGroup + "/ephemeral-storage-resource-limit"
	SidecarResourcePercentAnnotation    = SidecarGroup + "/resource-percentage"
	SidecarResourcePercentAnnotationAlt = SidecarGroup + "/resourcePercentage"

	FeaturesGroup = "features.knative.dev"

	FeaturePodInfoAnnotation        = FeaturesGroup + "/queueproxy-podinfo"
	FeatureHTTPFullDuplexAnnotation = FeaturesGroup + "/http-full-duplex"
)

// Annotations that only Ebb has.
const (
	// EbbServingGroup holds those about requests and pods. Activators read them on a Revision.
	EbbServingGroup = "serving.ebb.dev"
	// ParkedAnnotation stands on a Revision whose children are taken away, or not all there again;
	// its value is one of the two below. It is set and removed by patches that name the version
	// they were thought of for, so it is a lock too.
	ParkedAnnotation = "serving.ebb.dev/parked"
	// ParkedWasUp: the Revision had its initial pods once, and need not have them again to be
	// Ready.
	ParkedWasUp = "was-up"
	// ParkedNeverUp: it never had them.
	ParkedNeverUp = "never-up"
	// RolloutGuardAnnotation on a Service or Route says what a new revision must keep to while
	// requests move to it. WentBackAnnotation stands on a Revision that did not, and says why: no
	// Route that follows the latest Revision leads to it.
	RolloutGuardAnnotation = EbbServingGroup + "/rollout-guard"
	WentBackAnnotation     = EbbServingGroup + "/went-back"
	// WarmUpAnnotation on a Revision says how long a pod of it takes until it is as fast as others;
	// see wire.Sidecar.
	WarmUpAnnotation = EbbServingGroup + "/warm-up"
	// RolloutStepsAnnotation on a Service or Route lists the shares of a new revision on the way.
	RolloutStepsAnnotation = EbbServingGroup + "/rollout-steps"
	// RolloutOverruleAnnotation on a Service or Route is a person's word about the latest Revision.
	RolloutOverruleAnnotation = EbbServingGroup + "/rollout-overrule"
	// PlanAnnotation in the status of a Route is what activators do with requests for it (package
	// plan, Compact).
	PlanAnnotation = "networking.ebb.dev/plan"
	// RestingAnnotation on a Service or Route keeps its hosts from resting (decision 20).
	RestingAnnotation = "networking.ebb.dev/resting"
	// NeededByAnnotation on the public Service of a revision says which Routes have HTTPRoutes that
	// may name it, by their names with commas between: the Service stays while there is one.
	NeededByAnnotation = "networking.ebb.dev/needed-by"
	// BridgeLabel on an HTTPRoute that leads the hosts of one target to activators says which Route
	// it is for, by its UID. BridgeOfAnnotation says it as namespace/name, and
	// BridgeAfterAnnotation which HTTPRoutes of the Route were there before it was written.
	BridgeLabel           = "networking.ebb.dev/bridge"
	BridgeOfAnnotation    = "networking.ebb.dev/bridge-of"
	BridgeAfterAnnotation = "networking.ebb.dev/bridge-after"
	// CommonLabel is on what all resting hosts share: the common HTTPRoutes, the Service and the
	// EndpointSlices of the activators that follow plans.
	CommonLabel = "networking.ebb.dev/common"
	// AllowedListenersLabel is on no namespace. A Gateway's spec.allowedListeners that Ebb keeps
	// says so.
	AllowedListenersLabel = "networking.ebb.dev/allowed-listeners"
	// RecordsAnnotation on a template says which requests the API view.ebb.dev has records of.
	RecordsAnnotation = "serving.ebb.dev/records"
	// ShimAnnotation on a template puts the shim before the program of the serving container. Its
	// value is one of ShimModes.
	ShimAnnotation = "serving.ebb.dev/shim"
	// ConcurrencyVariableAnnotation on a template names the variable in which the serving container
	// finds containerConcurrency, if that is a limit.
	ConcurrencyVariableAnnotation = "serving.ebb.dev/concurrency-variable"
	// What happens to requests while a revision has no pod; see Cold.
	WaitingPageAnnotation       = "serving.ebb.dev/waiting-page"
	WaitingPageFromAnnotation   = "serving.ebb.dev/waiting-page-from"
	WaitingPageAfterAnnotation  = "serving.ebb.dev/waiting-page-after"
	WaitingPageStatusAnnotation = "serving.ebb.dev/waiting-page-status"
	FallbackServiceAnnotation   = "serving.ebb.dev/fallback-service"
	FallbackAfterAnnotation     = "serving.ebb.dev/fallback-after"
	NeverWakePathsAnnotation    = "serving.ebb.dev/never-wake-paths"
	NeverWakeAgentsAnnotation   = "serving.ebb.dev/never-wake-agents"
	NeverWakeStatusAnnotation   = "serving.ebb.dev/never-wake-status"
	MaxWaitingAnnotation        = "serving.ebb.dev/max-waiting"
	MaxWaitAnnotation           = "serving.ebb.dev/max-wait"
	// FallbackRevisionAnnotation in the status of a Revision names the revision of its fallback
	// Service. WaitingPageAnnotation in the status is the content of the ConfigMap.
	FallbackRevisionAnnotation = "serving.ebb.dev/fallback-revision"
	// WaitingPageLabel on a ConfigMap, with the value true, says that it holds waiting pages.
	WaitingPageLabel = "serving.ebb.dev/waiting-page"
	// InitializedAnnotation on a PodAutoscaler says "true" when its revision had its initial pods
	// before the object was made.
	InitializedAnnotation = EbbAutoscalingGroup + "/initialized"

	// EbbAutoscalingGroup holds the annotations of a revision template that only Ebb's autoscaler
	// knows.
	EbbAutoscalingGroup = "autoscaling.ebb.dev"
	// AdaptiveTargetAnnotation, with the value AdaptiveTarget, lets the target be learned.
	AdaptiveTargetAnnotation = EbbAutoscalingGroup + "/target"
	AdaptiveTarget           = "auto"
	// ScaleUpBurstAnnotation and ScaleUpPerSecondAnnotation bound how many pods the service may
	// add. They override the keys of the same names in config-autoscaler.
	ScaleUpBurstAnnotation     = EbbAutoscalingGroup + "/scale-up-burst"
	ScaleUpPerSecondAnnotation = EbbAutoscalingGroup + "/scale-up-per-second"
	// The annotations of pods that sleep; see Standby.
	StandbyAnnotation      = EbbAutoscalingGroup + "/standby"
	StandbyLevelAnnotation = EbbAutoscalingGroup + "/standby-level"
	StandbyForAnnotation   = EbbAutoscalingGroup + "/standby-for"
	ScaleBufferAnnotation  = EbbAutoscalingGroup + "/scale-buffer"
	// AwakeRequestsAnnotation is on a pod that has slept for long: the resource requests that it
	// has while it is awake, as JSON by container.
	AwakeRequestsAnnotation = EbbAutoscalingGroup + "/awake-requests"
	// StartupCPUAnnotation is the CPU limit of a pod until it answers; see Startup.
	StartupCPUAnnotation = EbbAutoscalingGroup + "/startup-cpu"
	// StartupLimitAnnotation is on a pod that gets more CPU while it starts: a StartupLimit.
	StartupLimitAnnotation = EbbAutoscalingGroup + "/startup-limit"
	// StandbySleepHookAnnotation and StandbyWakeHookAnnotation are HTTP calls to the program before
	// it sleeps and after it woke; see standby.Hook.
	StandbySleepHookAnnotation = EbbAutoscalingGroup + "/standby-sleep-hook"
	StandbyWakeHookAnnotation  = EbbAutoscalingGroup + "/standby-wake-hook"
	// BusyForAnnotation lets the program say that it is busy although no request is open, and
	// bounds for how long; see wire.HeaderBusy.
	BusyForAnnotation = EbbAutoscalingGroup + "/busy-for"
	// StandbyScheduleAnnotation and MinScaleScheduleAnnotation are read on Services and
	// Configurations, too, where a change makes no new revision.
	StandbyScheduleAnnotation  = EbbAutoscalingGroup + "/standby-schedule"
	MinScaleScheduleAnnotation = EbbAutoscalingGroup + "/min-scale-schedule"
)

// Labels and annotations of the networking groups.
const (
	VisibilityLabel = NetworkingGroup + "/visibility"
	// VisibilityClusterLocal is the only value of VisibilityLabel with a meaning.
	VisibilityClusterLocal = "cluster-local"

	DisableTLSAnnotation      = NetworkingGroup + "/disable-external-domain-tls"
	DisableTLSAnnotationAlt   = NetworkingGroup + "/disable-auto-tls"
	DisableTLSAnnotationAlt2  = NetworkingGroup + "/disableAutoTLS"
	HTTPProtocolAnnotation    = NetworkingGroup + "/http-protocol"
	HTTPProtocolAnnotationAlt = NetworkingGroup + "/httpOption"
	CertificateTypeLabel      = NetworkingGroup + "/certificate-type"
	TrustBundleLabel          = NetworkingGroup + "/trust-bundle"
	WildcardDomainLabel       = NetworkingGroup + "/wildcardDomain"

	// ServerlessServiceLabel and ServiceTypeLabel stand on a revision's two Services and their
	// EndpointSlices.
	ServerlessServiceLabel = NetworkingInternalGroup + "/serverlessservice"
	ServiceTypeLabel       = NetworkingInternalGroup + "/serviceType"
	ServiceTypePublic      = "Public"
	ServiceTypePrivate     = "Private"

	// NamespaceCertificateLabel stands on what is made for the certificates of a namespace as a
	// whole.
	NamespaceCertificateLabel = NetworkingInternalGroup + "/namespace-certificate"

	// SystemTLSAnnotation stands, with the value true, on a Deployment whose pods serve TLS, and on
	// the public Service of a revision once gateways may use its port 443.
	SystemTLSAnnotation = NetworkingInternalGroup + "/system-internal-tls"

	// RevisionHashAnnotation stands on a Deployment: the hash of what of it comes from the Revision
	// itself. With the hash of the whole it tells a change the user made from one that only a new
	// version of Ebb or a new setting makes.
	RevisionHashAnnotation = ServingGroup + "/revision-hash"

	// PodKeyAnnotation stands on a Deployment, and on its pods if they have the key of their
	// namespace in the environment: it names the key.
	PodKeyAnnotation = "serving.ebb.dev/pod-key"

	// ListenerSetLabel stands on the ListenerSets that end TLS for Ebb's hosts.
	ListenerSetLabel = NetworkingInternalGroup + "/listeners"

	RolloutAnnotation = NetworkingInternalGroup + "/rollout"
)

// Values of CertificateTypeLabel.
const (
	CertificateExternalDomain     = "external-domain"
	CertificateClusterLocalDomain = "cluster-local-domain"
	CertificateSystemInternal     = "system-internal"
)

// Keys of other groups that Ebb reads, keeps or drops.
const (
	LastAppliedAnnotation      = "kubectl.kubernetes.io/last-applied-configuration"
	DefaultContainerAnnotation = "kubectl.kubernetes.io/default-container"
	WebhookExcludeLabel        = "webhooks.knative.dev/exclude"
)

// Finalizers.
const (
	RouteFinalizer         = "routes." + ServingGroup
	DomainMappingFinalizer = "domainmappings." + ServingGroup
)

// Containers and ports of a revision's pod.
const (
	// QueueProxyContainer is the sidecar's name; users may not use it.
	QueueProxyContainer = "queue-proxy"
	// ShimContainer is the init container that installs the shim, and the volume in which it does.
	// Users may not use the name where they use ShimAnnotation.
	ShimContainer = "ebb-shim"
	// ShimPath is where a container with the shim has it.
	ShimPath = "/ebb"
	// UserPortName is what the serving container's only port is called in the pod.
	UserPortName = "user-port"
	// DefaultUserPort is used when the serving container names none.
	DefaultUserPort int32 = 8080
)

// SidecarPorts are queue-proxy's. No user container may have one of them.
var SidecarPorts = []int32{8008, 8012, 8013, 8022, 9090, 9091}
