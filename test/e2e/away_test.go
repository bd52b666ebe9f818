//go:build e2e

package e2e

import (
	"fmt"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
)

// awaitDeployment waits until a revision has a Deployment, or has none and no ReplicaSet either.
func (s *story) awaitDeployment(revision string, want bool) {
	s.Helper()
	s.until(fmt.Sprintf("Revision %s has a Deployment: %v", revision, want), func() (bool, string, error) {
		_, err := s.Kube.AppsV1().Deployments(s.namespace).Get(s.ctx, revision+"-deployment", metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return false, err.Error(), nil
		}
		sets, listed := s.Kube.AppsV1().ReplicaSets(s.namespace).List(s.ctx, metav1.ListOptions{LabelSelector: "serving.knative.dev/revision=" + revision})
		if listed != nil {
			return false, listed.Error(), nil
		}
		is := err == nil
		return is == want && (want || len(sets.Items) == 0), fmt.Sprintf("%v, with %d ReplicaSets", is, len(sets.Items)), nil
	})
}

// A revision that has had no pod for long has no Deployment. Requests have it made again, and none
// is lost; nobody who reads the Service sees a difference. It runs alone because what it sets
// counts for every service of the cluster.
func TestARevisionWithoutDeploymentAnswers(t *testing.T) {
	s := beginAlone(t, 10*time.Minute)
	url := s.readyAtZero("away", service{name: "away", revision: "away-one"}.manifest())
	s.awaitDeployment("away-one", true)
	s.config("config-deployment", map[string]string{"deployment-retention-period": "1m"})
	client := s.client()
	for range 2 {
		before := cluster.Conditions(s.awaitStatus(cluster.Services, "away", cluster.IsReady))["Ready"]
		s.awaitDeployment("away-one", false)
		after := cluster.Conditions(s.awaitStatus(cluster.Services, "away", cluster.IsReady))["Ready"]
		if before != after {
			t.Errorf("Ready was %v and is %v", before, after)
		}
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				if reply := probe.Get(s.ctx, client, url); !reply.OK() {
					t.Errorf("a request that came without a Deployment: %v", reply)
				}
			})
		}
		all.Wait()
		s.awaitDeployment("away-one", true)
		s.awaitZero("away")
	}
	s.awaitDeployment("away-one", false)

	if s.Program("controller") != "controller" {
		return // it is one process with what answers
	}
	back := s.scaleComponent("controller", 0)
	answered := make(chan probe.Reply, 1)
	go func() { answered <- probe.Get(s.ctx, client, url) }()
	if err := cluster.Pause(s.ctx, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	if err := back(s.ctx); err != nil {
		t.Fatal(err)
	}
	if reply := <-answered; !reply.OK() {
		t.Errorf("a request that came without a controller: %v", reply)
	}

	s.awaitZero("away")
	s.awaitDeployment("away-one", false)
	s.config("config-deployment", map[string]string{"deployment-retention-period": "0s"})
	s.awaitDeployment("away-one", true)
}
