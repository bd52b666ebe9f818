//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net"
	neturl "net/url"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
)

// guarded is a Service whose rollouts are judged, not by times: the node is busy with other tests.
func guarded(name, duration string, env map[string]string) string {
	return strings.Replace(service{name: name, annotations: map[string]string{"autoscaling.knative.dev/min-scale": "1"}, env: env}.manifest(),
		"  name: "+name+"\n", "  name: "+name+"\n  annotations:\n    serving.knative.dev/rollout-duration: "+duration+
			"\n    serving.ebb.dev/rollout-guard: errors<1%, starts<60s\n", 1)
}

// wentBack waits until the last rollout of a Service went back, and returns why.
func (s *story) wentBack(name string) (why string) {
	s.until("the rollout goes back", func() (bool, string, error) {
		route, err := s.Get(s.ctx, cluster.Routes, s.namespace, name)
		if err != nil {
			return false, err.Error(), nil
		}
		all := cluster.Conditions(route)
		why = all["AllTrafficAssigned"].Message
		return all["AllTrafficAssigned"].Reason == "WentBack" && all["IngressReady"].Status == "True", cluster.Describe(route), nil
	})
	return why
}

func TestARevisionThatFailsGoesBackAndGetsNoRequestAfterThat(t *testing.T) {
	s := begin(t, 3*time.Minute)
	url := s.ready("worse", guarded("worse", "10m", map[string]string{"TEXT": "good"}))
	prober := probe.Start(s.client(), url, 10*time.Millisecond)
	s.apply(guarded("worse", "10m", map[string]string{"TEXT": "bad", "FAIL_PERCENT": "100"}))
	why := s.wentBack("worse")
	during := prober.Stop()
	// The first revision failed nobody, so what failed came from the second.
	if during.Failed == 0 || during.Failed != during.Statuses[500] || during.Failed > during.Sent/10 {
		t.Errorf("%d of %d requests failed, by status %v: %v", during.Failed, during.Sent, during.Statuses, why)
	}
	if !strings.Contains(why, "requests to the new revision failed") {
		t.Errorf("it went back because %s", why)
	}
	if seen := count(probe.Burst(s.ctx, s.client(), url, 200)); seen["good\n"] != 200 {
		t.Errorf("200 requests after it went back: %v", seen)
	}
	// The next template begins anew.
	s.ready("worse", guarded("worse", "3s", map[string]string{"TEXT": "mended"}))
	if seen := count(probe.Burst(s.ctx, s.client(), url, 50)); seen["mended\n"] != 50 {
		t.Errorf("50 requests after it was mended: %v", seen)
	}
}

func TestARevisionThatIsAsGoodGetsAllRequestsInTime(t *testing.T) {
	s := begin(t, 3*time.Minute)
	url := s.ready("equal", guarded("equal", "15s", map[string]string{"TEXT": "one"}))
	prober := probe.Start(s.client(), url, 20*time.Millisecond)
	s.ready("equal", guarded("equal", "15s", map[string]string{"TEXT": "two"}))
	if seen := count(probe.Burst(s.ctx, s.client(), url, 50)); seen["two\n"] != 50 {
		t.Errorf("50 requests after the rollout: %v", seen)
	}
	if err := prober.StopAfter(s.ctx, 100).Err(100); err != nil {
		t.Errorf("during the rollout: %v", err)
	}
}

func TestARevisionThatCannotStartGetsNoRequest(t *testing.T) {
	s := begin(t, 3*time.Minute)
	url := s.ready("broken", guarded("broken", "5s", map[string]string{"TEXT": "good"}))
	prober := probe.Start(s.client(), url, 20*time.Millisecond)
	s.apply(guarded("broken", "5s", map[string]string{"TEXT": "bad", "CRASH": "1"}))
	if _, err := s.Await(s.ctx, cluster.Services, s.namespace, "broken", func(o *unstructured.Unstructured) bool {
		return cluster.Conditions(o)["ConfigurationsReady"].Status == "False"
	}); err != nil {
		t.Fatal(err)
	}
	report := prober.StopAfter(s.ctx, 300)
	if err := report.Err(300); err != nil || len(report.Bodies) != 1 {
		t.Errorf("while it could not start: %v, %v", err, report.Bodies)
	}
}

// "The release after the incident was the one that nobody judged." Who named the good revision for
// a while, and follows the latest one again, has that one judged.
func TestTheReleaseAfterAnIncidentIsJudged(t *testing.T) {
	s := begin(t, 4*time.Minute)
	url := s.ready("incident", guarded("incident", "10m", map[string]string{"TEXT": "good"}))
	bad := guarded("incident", "10m", map[string]string{"TEXT": "bad", "FAIL_PERCENT": "100"})
	s.ready("incident", bad+"  traffic:\n  - revisionName: incident-00001\n    percent: 100\n")
	if seen := count(probe.Burst(s.ctx, s.client(), url, 50)); seen["good\n"] != 50 {
		t.Errorf("50 requests while the good revision is named: %v", seen)
	}
	prober := probe.Start(s.client(), url, 10*time.Millisecond)
	s.apply(bad)
	why := s.wentBack("incident")
	if during := prober.Stop(); during.Failed == 0 || during.Failed != during.Statuses[500] || during.Failed > during.Sent/10 {
		t.Errorf("%d of %d requests failed, by status %v: %s", during.Failed, during.Sent, during.Statuses, why)
	}
	if seen := count(probe.Burst(s.ctx, s.client(), url, 200)); seen["good\n"] != 200 {
		t.Errorf("200 requests after it went back: %v", seen)
	}
}

// "It took our requests and never answered, and had all of them after two minutes." The rollout
// stands still, and the next template takes the requests from the one that hangs.
func TestARevisionThatNeverAnswersWaits(t *testing.T) {
	s := begin(t, 4*time.Minute)
	url := s.ready("hangs", guarded("hangs", "10m", map[string]string{"TEXT": "good"}))
	prober := probe.Start(s.client(), url, 20*time.Millisecond)
	s.apply(guarded("hangs", "10m", map[string]string{"TEXT": "hangs", "SLOW_PERCENT": "100", "SLOW_MS": "60000"}))
	await := func(what string, done func(route *unstructured.Unstructured) bool) {
		s.Helper()
		if _, err := s.Await(s.ctx, cluster.Routes, s.namespace, "hangs", done); err != nil {
			s.Fatalf("%s: %v", what, err)
		}
	}
	await("it stands still", func(route *unstructured.Unstructured) bool {
		says := cluster.Conditions(route)["IngressReady"].Message
		return strings.Contains(says, "stands still") && strings.Contains(says, "the new revision has answered nothing")
	})
	s.apply(guarded("hangs", "10m", map[string]string{"TEXT": "mended"}))
	await("the one that hangs has nothing", func(route *unstructured.Unstructured) bool {
		traffic, _, _ := unstructured.NestedSlice(route.Object, "status", "traffic")
		var names []string
		for i := range traffic {
			one, _ := traffic[i].(map[string]any)
			names = append(names, fmt.Sprint(one["revisionName"]))
		}
		return strings.Join(names, " ") == "hangs-00001 hangs-00003" && cluster.Conditions(route)["IngressReady"].Reason == "RolloutInProgress"
	})
	if err := prober.Stop().Err(100); err != nil {
		t.Errorf("those that waited have their answers: %v", err)
	}
}

// "We look at the preview before we let it out, and forgot to once." No request but those of the
// tag reaches a new revision until enough of these have been answered, and well.
func TestAPreviewIsJudgedBeforeOthersReachIt(t *testing.T) {
	s := begin(t, 4*time.Minute)
	manifest := func(env map[string]string) string {
		return strings.Replace(service{name: "look", annotations: map[string]string{"autoscaling.knative.dev/min-scale": "1"}, env: env,
			traffic: "  - latestRevision: true\n    percent: 100\n  - latestRevision: true\n    tag: next\n"}.manifest(),
			"  name: look\n", "  name: look\n  annotations:\n    serving.ebb.dev/rollout-guard: errors<5%, starts<60s\n"+
				"    serving.ebb.dev/rollout-steps: 0% 1s requests>50, 50% 3s\n", 1)
	}
	url := s.ready("look", manifest(map[string]string{"TEXT": "one"}))
	host, err := cluster.HostOf(url)
	if err != nil {
		t.Fatal(err)
	}
	preview := "http://next-" + host + "/"
	says := func(what string) {
		s.Helper()
		if _, err := s.Await(s.ctx, cluster.Routes, s.namespace, "look", func(route *unstructured.Unstructured) bool {
			return strings.Contains(cluster.Conditions(route)["IngressReady"].Message, what)
		}); err != nil {
			s.Fatalf("the Route does not say %q: %v", what, err)
		}
	}
	prober := probe.Start(s.client(), url, 20*time.Millisecond)
	s.apply(manifest(map[string]string{"TEXT": "two", "FAIL_PERCENT": "100"}))
	says("of the 50 requests by its tag")
	s.until("the preview fails", func() (bool, string, error) {
		probe.Burst(s.ctx, s.client(), preview, 10)
		route, err := s.Get(s.ctx, cluster.Routes, s.namespace, "look")
		if err != nil {
			return false, err.Error(), nil
		}
		return strings.Contains(cluster.Conditions(route)["IngressReady"].Message, "more than it may"), cluster.Describe(route), nil
	})
	s.apply(manifest(map[string]string{"TEXT": "three"}))
	says("has answered 0 of the 50 requests by its tag")
	if report := prober.StopAfter(s.ctx, 200); report.Err(200) != nil || report.Bodies["one\n"] != report.Sent {
		t.Errorf("before the preview had its requests: %v, %v", report.Err(200), report.Bodies)
	}
	s.until("the tag leads to the third", func() (bool, string, error) {
		seen := count(probe.Burst(s.ctx, s.client(), preview, 60))
		return seen["three\n"] == 60, fmt.Sprint(seen), nil
	})
	if _, err := s.AwaitReady(s.ctx, s.namespace, "look"); err != nil {
		t.Fatal(err)
	}
	if seen := count(probe.Burst(s.ctx, s.client(), url, 50)); seen["three\n"] != 50 {
		t.Errorf("50 requests after the rollout: %v", seen)
	}
}

// "The autoscaler was away in the middle, and the new revision got everything although nobody knew
// how it did." The split stands still, and goes on when an autoscaler is back.
func TestARolloutStandsStillWhileTheAutoscalerIsAway(t *testing.T) {
	s := beginAlone(t, 3*time.Minute)
	s.needsAProcessOfEach()
	url := s.ready("unheard", guarded("unheard", "60s", map[string]string{"TEXT": "one"}))
	prober := probe.Start(s.client(), url, 20*time.Millisecond)
	s.apply(guarded("unheard", "60s", map[string]string{"TEXT": "two"}))
	until := func(what string, done func(route *unstructured.Unstructured, says string) bool) (share int64) {
		s.Helper()
		route, err := s.Await(s.ctx, cluster.Routes, s.namespace, "unheard", func(route *unstructured.Unstructured) bool {
			return done(route, cluster.Conditions(route)["IngressReady"].Message)
		})
		if err != nil {
			s.Fatalf("%s: %v", what, err)
		}
		return newestShare(route)
	}
	until("the rollout is judged", func(_ *unstructured.Unstructured, says string) bool {
		return strings.Contains(says, "requests to the new revision failed")
	})
	back := s.scaleAutoscalers(0)
	held := until("it stands still", func(_ *unstructured.Unstructured, says string) bool {
		return strings.Contains(says, "stands still: no figures of the revisions came")
	})
	probe.Start(s.client(), url, 20*time.Millisecond).StopAfter(s.ctx, 300)
	if now := until("it has a share", func(*unstructured.Unstructured, string) bool { return true }); now != held || held >= 100 {
		t.Errorf("the new revision had %d %% when the rollout stood still, and has %d %%", held, now)
	}
	if err := back(s.ctx); err != nil {
		t.Fatal(err)
	}
	until("it goes on", func(route *unstructured.Unstructured, _ string) bool { return newestShare(route) > held })
	if err := prober.Stop().Err(300); err != nil {
		t.Errorf("during the rollout: %v", err)
	}
}

// "We run three autoscalers, and the one that knew of the rollout was killed." The others tell as
// well, and the revision that fails goes back.
func TestARolloutIsJudgedBySeveralAutoscalers(t *testing.T) {
	s := beginAlone(t, 4*time.Minute)
	s.needsAProcessOfEach()
	s.scaleAutoscalers(3)
	url := s.ready("shared", guarded("shared", "10m", map[string]string{"TEXT": "one"}))
	prober := probe.Start(s.client(), url, 20*time.Millisecond)
	s.apply(guarded("shared", "10m", map[string]string{"TEXT": "two", "FAIL_PERCENT": "30"}))
	if _, err := s.Await(s.ctx, cluster.Routes, s.namespace, "shared", func(route *unstructured.Unstructured) bool {
		return strings.Contains(cluster.Conditions(route)["IngressReady"].Message, "requests to the new revision failed")
	}); err != nil {
		t.Fatalf("the rollout is judged: %v", err)
	}
	at := int64(0)
	if err := s.Kube.CoreV1().Pods(cluster.System).Delete(s.ctx, s.leadingAutoscaler(), metav1.DeleteOptions{GracePeriodSeconds: &at}); err != nil {
		t.Fatal(err)
	}
	if why := s.wentBack("shared"); !strings.Contains(why, "requests to the new revision failed") {
		t.Errorf("it went back because %s", why)
	}
	if during := prober.Stop(); during.Failed != during.Statuses[500] || during.Failed > during.Sent/10 {
		t.Errorf("%d of %d requests failed, by status %v", during.Failed, during.Sent, during.Statuses)
	}
	if seen := count(probe.Burst(s.ctx, s.client(), url, 100)); seen["one\n"] != 100 {
		t.Errorf("100 requests after it went back: %v", seen)
	}
}

// "Somebody found a request that the new revision fails, and sent it until our release went back."
// One client makes the rollout wait for a person. Several send it back.
func TestOneClientStopsARolloutAndSendsNothingBack(t *testing.T) {
	s := begin(t, 4*time.Minute)
	manifest := func(env map[string]string) string {
		return strings.Replace(guarded("choosy", "10m", env), "  annotations:\n", "  annotations:\n    serving.ebb.dev/rollout-steps: 30% 10m, 60%\n", 1)
	}
	url := s.ready("choosy", manifest(map[string]string{"TEXT": "one"}))
	inside := "http://choosy." + s.namespace + ".svc.cluster.local/"
	clients := s.clients(10)
	ctx, cancel := context.WithCancel(s.ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	send := func(pod string, each time.Duration, query string) {
		client := s.ClientOf(net.JoinHostPort(pod, "8080"), time.Minute)
		s.Cleanup(client.CloseIdleConnections)
		from := "http://" + pod + "/?fetch=" + neturl.QueryEscape(inside+query)
		all.Go(func() {
			for tick := time.NewTicker(each); ; {
				select {
				case <-ctx.Done():
					tick.Stop()
					return
				case <-tick.C:
					probe.Get(ctx, client, from)
				}
			}
		})
	}
	for _, pod := range clients {
		send(pod, 100*time.Millisecond, "?good=1")
	}
	send(clients[0], 50*time.Millisecond, "?bad=1")
	s.apply(manifest(map[string]string{"TEXT": "two", "FAIL_QUERY": "bad=1"}))
	waits := func(route *unstructured.Unstructured) bool {
		says := cluster.Conditions(route)["IngressReady"].Message
		return strings.Contains(says, "stands still") && strings.Contains(says, "came from one of 16 groups of clients")
	}
	route, err := s.Await(s.ctx, cluster.Routes, s.namespace, "choosy", waits)
	if err != nil {
		t.Fatalf("it waits for a person: %v", err)
	}
	share := newestShare(route)
	if err := probe.Start(s.client(), url, 50*time.Millisecond).StopAfter(s.ctx, 200).Err(200); err != nil {
		t.Errorf("while it waits: %v", err)
	}
	if route, err = s.Get(s.ctx, cluster.Routes, s.namespace, "choosy"); err != nil {
		t.Fatal(err)
	}
	if now := newestShare(route); now != share || !waits(route) {
		t.Fatalf("the new revision had %d %%, and has %d %%: %s", share, now, cluster.Describe(route))
	}
	for _, pod := range clients[1:] {
		send(pod, 200*time.Millisecond, "?bad=1")
	}
	if why := s.wentBack("choosy"); !strings.Contains(why, "requests to the new revision failed") {
		t.Errorf("it went back because %s", why)
	}
}

// clients starts pods that fetch what they are asked to, and returns their addresses: a gateway
// sees as many clients.
func (s *story) clients(n int) (addresses []string) {
	s.Helper()
	if err := s.ApplyPlain(s.ctx, s.namespace, cluster.Plain{Name: "clients", Image: testImage, Host: "clients." + s.namespace + ".example.com", Replicas: n}); err != nil {
		s.Fatal(err)
	}
	s.until("the clients are ready", func() (bool, string, error) {
		pods, err := s.Kube.CoreV1().Pods(s.namespace).List(s.ctx, metav1.ListOptions{LabelSelector: "app=clients"})
		if err != nil {
			return false, err.Error(), nil
		}
		addresses = nil
		for _, pod := range cluster.ReadyPods(pods.Items) {
			addresses = append(addresses, pod.Status.PodIP)
		}
		return len(addresses) == n, fmt.Sprintf("%d of %d", len(addresses), n), nil
	})
	return addresses
}

// newestShare is the percent of the requests that the newest Revision of a Route gets.
func newestShare(route *unstructured.Unstructured) (percent int64) {
	traffic, _, _ := unstructured.NestedSlice(route.Object, "status", "traffic")
	if len(traffic) > 0 {
		newest, _ := traffic[len(traffic)-1].(map[string]any)
		percent, _ = newest["percent"].(int64)
	}
	return percent
}
