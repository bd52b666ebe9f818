package faults

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
)

// harmless returns what looks like the end of a node to somebody, and is not: nothing may be
// replaced meanwhile.
func (s Set) harmless() (list []Fault) {
	for _, f := range append(s.ofNodes(), s.All()...) {
		switch f.Name {
		case "node frozen", "node cut off from the control plane", "API server away":
			f.Node, f.Keeps = true, true
			list = append(list, f)
		}
	}
	return append(list,
		Fault{Name: "one activator cut off from the pods", Node: true, Keeps: true, Loses: "requests that are led to that activator", Do: s.cutOffOne},
		Fault{Name: "node busy", Node: true, Keeps: true, Do: func(ctx context.Context) error {
			return s.hit(ctx, func(node string) error { return s.burn(ctx, node) })
		}})
}

// soakTable is the name of the rules that lose what an activator receives.
const soakTable = "ip ebb-soak"

// cutOffOne has one activator hear nothing from the pods of the services. Its packets get there, so
// nothing fails at once.
func (s Set) cutOffOne(ctx context.Context) error {
	activators, err := s.processes(ctx, s.program("activator"))
	if err != nil {
		return err
	}
	pods, err := s.Kube.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "serving.knative.dev/revision"})
	if err != nil {
		return fmt.Errorf("list the pods of services in %s: %w", s.Namespace, err)
	}
	rules := losing(pods.Items)
	if rules == "" {
		return fmt.Errorf("no service in %s has a pod", s.Namespace)
	}
	one := activators.ofOnePod()[0]
	nft := func(rules string) error {
		command := exec.Command("nsenter", "-t", strconv.Itoa(one.pid), "-n", "nft", rules)
		if out, err := command.CombinedOutput(); err != nil && one.alive() {
			return fmt.Errorf("%s: %w: %s", command, err, bytes.TrimSpace(out))
		}
		return nil
	}
	if err = nft(rules); err == nil {
		s.last(ctx, nodeTime)
	}
	return errors.Join(err, nft("add table "+soakTable+"\ndelete table "+soakTable+"\n"))
}

// losing are nft's rules that lose what comes from the pods, "" if none has an address.
func losing(pods []corev1.Pod) string {
	var addresses []string
	for _, pod := range pods {
		if ip := net.ParseIP(pod.Status.PodIP); ip.To4() != nil { // the dev cluster has no others
			addresses = append(addresses, ip.String())
		}
	}
	if len(addresses) == 0 {
		return ""
	}
	return fmt.Sprintf("table %s {\n\tchain in {\n\t\ttype filter hook input priority 0;\n\t\tip saddr { %s } drop\n\t}\n}\n", soakTable, strings.Join(addresses, ", "))
}

const (
	burners  = 32
	burnPort = 8080
)

// burn keeps all CPUs of a node busy for a time, with a pod that counts primes.
func (s Set) burn(ctx context.Context, node string) error {
	const name = "soak-busy"
	pods := s.Kube.CoreV1().Pods(s.Namespace)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: node, TerminationGracePeriodSeconds: ptr.To(int64(0)),
		Containers: []corev1.Container{{Name: "burn", Image: cmp.Or(s.Image, "dev.local/ebb-test/autoscale:dev"),
			Env: []corev1.EnvVar{{Name: "PORT", Value: strconv.Itoa(burnPort)}},
			// Its share is that of several of the other pods, and the node has room for it.
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}}}}}}
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make node %s busy: %w", node, err)
	}
	defer func() {
		mend, cancel := mending(ctx)
		defer cancel()
		_ = pods.Delete(mend, name, metav1.DeleteOptions{}) // its namespace goes, too
	}()
	url := ""
	starting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := cluster.Until(starting, func() (bool, string, error) {
		now, err := pods.Get(starting, name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error(), nil
		}
		url = fmt.Sprintf("http://%s/?prime=10000000", net.JoinHostPort(now.Status.PodIP, strconv.Itoa(burnPort)))
		return now.Status.Phase == corev1.PodRunning && now.Status.PodIP != "", "pod " + name + ": " + string(now.Status.Phase) + " " + now.Status.Reason, nil
	}); err != nil {
		return fmt.Errorf("make node %s busy: %w", node, err)
	}
	burning, cool := context.WithTimeout(ctx, min(nodeTime, s.Longest))
	defer cool()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: burners}}
	defer client.CloseIdleConnections()
	var all sync.WaitGroup
	answered := make([]int, burners)
	for i := range burners {
		all.Go(func() {
			for burning.Err() == nil {
				if probe.Get(burning, client, url).OK() {
					answered[i]++
				} else {
					_ = cluster.Pause(burning, 100*time.Millisecond) // it may not listen yet
				}
			}
		})
	}
	all.Wait()
	for _, n := range answered {
		if n > 0 {
			return nil
		}
	}
	return fmt.Errorf("make node %s busy: its pod answered nobody", node)
}
