package main

// section is one experiment in the report.
type section struct {
	name     string
	source   string
	question string
	how      string // how it was run here
	apart    string // what is not comparable
	figures  func(lines) []figure
	chart    func(lines) chart
	caption  string
	// grid names the field of the table of all cells, and what x is; none if it is empty.
	grid, x string
}

// figure is one row: what was published beside what was measured.
type figure struct{ name, published, ebb, floor string }

const sameGateway = "Another machine, other years and versions: compare with the floor, not with the published figure."

var sections = []section{
	{name: "hello-baseline", source: "Li et al., 3.2.1",
		question: "What does a platform cost a function that does nothing?",
		how: "One pod, no autoscaling, an answer of 4 bytes, a closed loop. *ebb* goes from the gateway straight to queue-proxy " +
			"(`target-burst-capacity: \"0\"`), *ebb-activator* through the activator too (`\"-1\"`); *direct* is past the gateway.",
		figures: helloFigures, grid: "rps", x: "clients",
		chart:   byClients("Requests a second with an answer of 4 bytes", "rps"),
		caption: "Past the gateway one hop is left, in the floor none. Both lines through the gateway end where the machine's CPUs are used up.",
		apart:   sameGateway + " The paper's queue of 50 000 and timeout of 10 s were of other platforms; no request here came near a bound."},
	{name: "http-workload", source: "Li et al., 3.2.2",
		question: "How long do the slowest requests take if a function waits for another server?",
		how:      "The function reads a page of 1 KiB from a server in the cluster, one pod, a closed loop.",
		figures:  httpFigures, grid: "p99_ms", x: "clients", chart: distribution,
		caption: "The share of requests that took no longer than this, at the most clients.",
		apart:   sameGateway + " The paper's page and its server are not known in detail."},
	{name: "payload", source: "Li et al., 3.2.3",
		question: "What do large answers cost?",
		how:      "One pod, 10 clients, answers of 1 byte to hundreds of kilobytes.",
		figures:  payloadFigures, grid: "rps", x: "bytes", chart: bySize,
		caption: "Both axes are logarithmic. The distance of the lines is what the hop through queue-proxy costs at each size.",
		apart:   "The paper ranks platforms by curves; it has no figure to set beside these."},
	{name: "call-path", source: "Li et al., 3.2.4",
		question: "What does each hop add to a single request?",
		how:      "One request at a time, a thousand in each round: through the gateway, to queue-proxy's port, and to the container's port.",
		figures:  pathFigures, chart: pathChart,
		caption: "Medians. The gateway is the same for both; what queue-proxy adds is the difference of the last two of Ebb.",
		apart:   sameGateway + " The client runs on the node itself."},
	{name: "breakdown", source: "Li et al., 3.2.5",
		question: "Where in its pod does a request spend its time?",
		how: "One request at a time goes to the pod. *Before* is from its packet on the node's bridge to the function's first line, *after* from " +
			"its last line to the answer's packet on the bridge. The kernel stamps the packets with the clock that the function reads. " +
			"The floor has no queue-proxy, so its times are the kernel's and the HTTP server's of the function.",
		figures: breakdownFigures, chart: breakdownChart,
		caption: "Medians. Of Ebb's time, the floor's is the function's own HTTP server; the rest is queue-proxy.",
		apart:   sameGateway + " Where exactly the paper took its times in the pod is not known."},
	{name: "steady", source: "Li et al., 3.3.1",
		question: "How soon are there ten pods for a hundred requests in flight?",
		how: "Minimum 1, maximum 10, target 10, window 10 s. Each pod has one worker that takes 6 ms for a request. The floor is told to have ten pods " +
			"at the moment when its load begins.",
		figures: steadyFigures, chart: podsOverTime("Pods that are Ready, 100 requests in flight"),
		caption: "No autoscaler can be sooner than the floor, which need not find out.",
		apart:   "Panic mode, which the paper switched off, is as Ebb has it by default. Time to start a pod is the machine's and Kubernetes'."},
	{name: "bursty", source: "Li et al., 3.3",
		question: "Do pods follow bursts, and leave between them?",
		how:      "As steady, in bursts with pauses twice as long. While one pauses, the other has its burst. The floor has ten pods all the time.",
		figures:  burstyFigures, chart: ratesOfBursts,
		caption: "Each line is one burst. What is missing below the floor's line at the start is the time until the pods are there.",
		apart:   "The paper shows curves and no figures."},
	{name: "nine-outstanding", source: "Li et al., figure 13",
		question: "What if nine requests are in flight and the target is ten?",
		how:      "As steady, with nine in flight: with the target of ten, with `autoscaling.ebb.dev/target: auto`, and on one and ten pods of the floor.",
		figures:  nineFigures, chart: ratesOverTime("Requests a second, nine in flight"),
		caption: "With the compatible target there is one pod and its rate. A learned target finds that more pods answer more.",
		apart:   "The function of the paper took other time, so compare factors."},
	{name: "sticky-connections", source: "Li et al., figure 13",
		question: "Do pods that come later get requests from clients with old connections?",
		how: "Twenty clients keep their connections while the pods grow from one to five. *floor-service* is the plain Deployment past the gateway, by " +
			"the address of its Service.",
		figures: stickyFigures, chart: stickyChart,
		caption: "Rate in the last third of the time. A Service's address chooses a pod for each connection, so that new pods stay idle.",
		apart:   "OpenFaaS's gateway has other connections; *floor-service* is its effect without its code."},
	{name: "hpa", source: "Li et al., 3.3.2",
		question: "How fast is scaling by CPU?",
		how: "`class: hpa.autoscaling.knative.dev` with a CPU target of 50 % of 50m, at most ten pods; the floor has a HorizontalPodAutoscaler of the " +
			"same kind. Ten clients ask for the primes below 100 000.",
		figures: hpaFigures, chart: podsOverTime("Pods that are Ready, scaled by CPU"),
		caption: "Both are Kubernetes' own HorizontalPodAutoscaler. The dev cluster evaluates it every 5 s, the default is 15 s.",
		apart:   "Other intervals of measurement. The CPU target is a share of what the whole pod requests, and a pod of Ebb has two containers."},
	{name: "workers", source: "Li et al., 2.3",
		question: "What do more workers in a pod bring?",
		how: "One pod, 100 clients, a function that waits for 50 ms. Ebb's worker count is `containerConcurrency`, which " +
			"`serving.ebb.dev/concurrency-variable` tells the container; the floor's is in its environment.",
		figures: workersFigures, grid: "rps", x: "workers", chart: workersChart,
		caption: "Both axes are logarithmic; a straight line is proportional.",
		apart:   "What the paper's function waited for is not known. This one waits for a timer, so that only CPUs bound it."},
	{name: "watchdog-modes", source: "a thesis on Fission, Kubeless and OpenFaaS, 4.3",
		question: "What does it cost to start a process for each request?",
		how:      "A program that makes capital letters of its input, behind each [mode of the shim](../shim.md); the floor runs it as a server without a shim.",
		figures:  watchdogFigures, grid: "rps", x: "users", chart: byClients("Requests a second in each mode of the shim", "rps"),
		caption: "The mode http keeps one process. The others start one for each request.",
		apart:   "OpenFaaS's watchdog there, Ebb's shim here: the order of the modes is what compares."},
	{name: "success-ratio", source: "a thesis on Fission, Kubeless and OpenFaaS, 4.4",
		question: "Do all requests succeed, at any number of users and pods?",
		how:      "1, 5, 10, 20, 50 and 100 users in a closed loop against fixed numbers of pods.",
		figures:  successFigures, chart: successChart,
		caption: "The lowest share of all numbers of pods; the dashed lines are the lowest cells that were published.",
		apart:   "A share of 2xx is comparable, except that the machine decides how hard it is pressed."},
	{name: "concurrency", source: "McGrath and Brenner, III.A",
		question: "Does each further client get as much as the first?",
		how:      "One more client every few seconds up to 15, each request takes 100 ms, and a pod has one at a time. The window is 10 s. The floor has 15 pods from the start.",
		figures:  concurrencyFigures, grid: "late_rps", x: "clients", chart: concurrencyChart,
		caption: "Rate in the last third of each step. Ebb's line dips where the step's pod is not there yet. The floor's gateway does not know which of its 15 pods is at work.",
		apart:   "A hosted platform has as many machines as it needs; here 15 pods share one."},
	{name: "backoff", source: "McGrath and Brenner, III.B",
		question: "When do idle pods go, and what does the next call cost?",
		how:      "Single calls at longer and longer gaps. *ebb-standby* keeps one pod asleep (`autoscaling.ebb.dev/standby: \"1\"`). The floor always has its pod.",
		figures:  backoffFigures, grid: "took_ms", x: "gap, s", chart: backoffChart,
		caption: "After the window the pod is gone, and a call waits for a new one; a pod on standby wakes.",
		apart:   "Below the full size, gaps are seconds instead of minutes, with a window of 10 s instead of 60 s. Each cell is one call."},
	{name: "sieve", source: "tinyFaaS, 4",
		question: "What does a CPU-bound function keep of its native rate under a thousand clients?",
		how:      "The primes below 1000, a closed loop; an answer after more than a second is no success. The floor is the function in a plain pod.",
		figures:  sieveFigures, grid: "rps", x: "clients", chart: byClients("Requests a second for the primes below 1000", "rps"),
		caption: "The sieve takes some microseconds, so this, too, measures the path.",
		apart:   "tinyFaaS compares with a native server on the same board without any gateway. Floor and Ebb here both have the gateway."},
}
