package wire

// Headers between gateway, activator, queue-proxy and their probers (contract sections 5.6 and
// 6.2).
const (
	// HeaderNetworkProbe marks a probe. Its value names the component that must answer.
	HeaderNetworkProbe = "K-Network-Probe"
	// HeaderNetworkHash carries the hash of the plan that a gateway serves. The receiver of an
	// ingress probe echoes it.
	HeaderNetworkHash = "K-Network-Hash"
	// HeaderProxyRequest says which component of ours has counted the request already.
	HeaderProxyRequest = "K-Proxy-Request"
	// HeaderOriginalHost is the Host that the client sent, where a hop had to change Host.
	HeaderOriginalHost = "K-Original-Host"
	// HeaderDirectLB tells a service mesh, besides the Host of the private Service, that the
	// connection goes to the pod of its address.
	HeaderDirectLB = "Knative-Direct-Lb"
	// HeaderRevision and HeaderNamespace name the revision that a request is for.
	HeaderRevision  = "Knative-Serving-Revision"
	HeaderNamespace = "Knative-Serving-Namespace"
	// HeaderTag and HeaderDefaultRoute carry tag header routing.
	HeaderTag          = "Knative-Serving-Tag"
	HeaderDefaultRoute = "Knative-Serving-Default-Route"
	// HeaderBackend chooses a spare rule of a host by the UID of its Route and its backends
	// (UID/generation/service:port,...). Probes send it to learn whether a gateway knows them.
	HeaderBackend = "Ebb-Backend"
	// HeaderResting is on requests that gateways lead to activators by the host alone. Its value is
	// the kind of gateways, external or local. Headers that name a revision count before it, so a
	// client gains nothing by it. On an answer it is RestingUnknown.
	HeaderResting = "Ebb-Resting"
	// HeaderRelayed is on a request that an activator relays to another one. It counts only beside
	// headers that name the revision, and tells the other that somebody can serve the request if it
	// cannot: what a client says with it gets it nothing.
	HeaderRelayed = "Ebb-Relayed"
	// HeaderFallback is on responses of a fallback Service, which it names.
	HeaderFallback = "Ebb-Fallback"
	// HeaderServerTiming is on responses to requests that waited for a pod: how long the steps took
	// (see ColdStart). Off by default. A container may send the header, too.
	HeaderServerTiming = "Server-Timing"
	// HeaderRecord asks queue-proxy for a record of this request (see Called). Anybody may.
	HeaderRecord = "Ebb-Record"
)

// Headers of asynchronous calls.
const (
	// HeaderAsyncTarget is what a Route sets on a request that it leads to the courier: the Route
	// and the host that the call is for (see AsyncTarget).
	HeaderAsyncTarget = "Ebb-Async-Target"
	// HeaderAsyncDelivery is on the request with which the courier delivers a call. Its value is
	// the UID of the Route.
	HeaderAsyncDelivery = "Ebb-Async-Delivery"
	// HeaderCallback is the URL that gets the result of a call.
	HeaderCallback = "Ebb-Callback"
	// HeaderCallID and HeaderAttempt tell the service which call a request belongs to, and the
	// number of the attempt.
	HeaderCallID  = "Ebb-Call-Id"
	HeaderAttempt = "Ebb-Attempt"
	// HeaderAccepted is when the courier accepted the call (RFC 3339).
	HeaderAccepted = "Ebb-Accepted-At"
	// HeaderSchedule and HeaderScheduledAt are on calls that a schedule has made.
	HeaderSchedule    = "Ebb-Schedule"
	HeaderScheduledAt = "Ebb-Scheduled-At"
	// HeaderHops is how many asynchronous calls led to a request.
	HeaderHops = "Ebb-Async-Hops"
	// HeaderResult is on the answer at a Location that has no result, and says why.
	HeaderResult = "Ebb-Result"
)

// Values of HeaderNetworkProbe. A component answers its own value with 200 and that value as the
// body.
const (
	ProbeQueue     = "queue"     // queue-proxy: is the user container ready?
	ProbeActivator = "activator" // activator: am I talking to you?
	ProbeIngress   = "probe"     // any component: echo HeaderNetworkHash
)

// RestingUnknown is the value of HeaderResting on the 404 of an activator that does not know the
// host. A gateway's own answer to such a host is a 404, too.
const RestingUnknown = "unknown"

// ProxyActivator is the value of HeaderProxyRequest on requests that came through the activator.
const ProxyActivator = "activator"

// User agents of probes; requests that carry one never count as load.
const (
	AgentKubelet         = "kube-probe/" // a prefix
	AgentActivatorProbe  = "Knative-Activator-Probe"
	AgentAutoscalerProbe = "Knative-Autoscaling-Probe"
	AgentIngressProbe    = "Knative-Ingress-Probe"
)

// LevelAwake is the level of PathStandby that wakes a pod. The others are those of package standby.
const LevelAwake = "awake"

// Ports (contract sections 1.5, 5.1 and 6.1).
const (
	PortHTTP1         = 8012 // queue-proxy and activator, HTTP/1.1 services
	PortH2C           = 8013 // queue-proxy and activator, h2c services
	PortTLS           = 8112 // queue-proxy and activator, TLS
	PortAnnounce      = 8014 // activator, PathAnnounce and PathReach
	PortNodeAgent     = 9395 // node agent, PathReach
	PortDrain         = 8022 // queue-proxy, PathDrain and PathLiveness
	PortMetrics       = 9090 // queue-proxy: one Stat for the autoscaler; components: Prometheus
	PortUserMetrics   = 9091 // queue-proxy, Prometheus metrics of requests
	PortProfiling     = 8008 // pprof, when switched on
	PortStats         = 8080 // autoscaler, PathStats, PathIncidents, PathViews, PathHandover and PathBirths
	PortView          = 8443 // autoscaler, the API view.ebb.dev, TLS
	PortComponentLive = 8080 // controller and webhook, health
)

// Paths.
const (
	PathDrain     = "/wait-for-drain" // queue-proxy: answers when it has drained
	PathAnnounce  = "/announce"       // activator: POST Announcement
	PathReach     = "/reach"          // activator and node agent: POST of a ReachQuestion
	PathStats     = "/stats"          // autoscaler: POST of EncodeStats
	PathIncidents = "/incidents"      // autoscaler: POST of Incidents
	PathViews     = "/views"          // autoscaler: GET ?namespace=&service=, from another replica
	PathHandover  = "/handover"       // autoscaler: GET ?bucket=, from the replica that owns it next
	PathBirths    = "/births/"        // autoscaler: GET of a Birth, followed by <namespace>/<revision>/<pod>
	PathHealth    = "/healthz"
	PathMetrics   = "/metrics"
	PathStandby   = "/standby"   // queue-proxy: POST of the autoscaler, ?level=LEVEL or LevelAwake
	PathLiveness  = "/liveness/" // queue-proxy: liveness probe of the container that follows
	// PathCalls, followed by the ID of a call, is where its result is read, on each host.
	PathCalls = "/.ebb/calls/"
)

// Names in the certificates between Ebb's parts (contract section 6.2).
const (
	NameRouting    = "kn-routing"             // of an activator
	NameUserPrefix = "kn-user-"               // of a pod, followed by its namespace
	NameDataPlane  = "data-plane.knative.dev" // of both: the server name of every handshake
)
