package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/test/internal/trial"
)

type run struct {
	*trial.Place
	out                       *result.Printer
	services, rps             int
	kill                      bool
	rest                      time.Duration
	manifests, command, image string
	seed                      uint64
	random                    *rand.Rand
	targets                   []target
	kills                     int
}

func (r *run) all(ctx context.Context) (err error) {
	if err := r.apply(ctx); err != nil {
		return err
	}
	settings, err := r.settings(ctx)
	if err != nil {
		return err
	}
	probers := r.load()
	// Services that were idle while others were made come back from zero.
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(15 * time.Second):
	}
	pods, err := r.containers(ctx)
	if err != nil {
		return err
	}
	failed := r.halfway(ctx)
	if failed != nil {
		return errors.Join(failed, r.report(probers, pods))
	}
	for _, move := range []struct {
		name string
		args []string
	}{
		{"check", []string{"migrate", "--check", "--manifests", r.manifests}},
		{"apply", []string{"migrate", "--apply", "--manifests", r.manifests}},
		{"rollback", []string{"migrate", "--rollback"}},
	} {
		if failed = r.move(ctx, move.name, move.args); failed != nil {
			break
		}
		if move.name == "check" {
			continue
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(r.rest):
		}
		if err := r.say("after "+move.name, pods); err != nil {
			return err
		}
		if failed = r.works(ctx, move.name); failed != nil {
			break
		}
	}
	if failed == nil {
		failed = r.same(ctx, settings)
	}
	return errors.Join(failed, r.report(probers, pods))
}

// halfway begins a move with -kill, kills it, and goes back.
func (r *run) halfway(ctx context.Context) error {
	if !r.kill {
		return nil
	}
	text, killed, err := r.once(ctx, "halfway", []string{"migrate", "--apply", "--manifests", r.manifests})
	if err != nil && !killed {
		return fmt.Errorf("halfway: %w: %s", err, text)
	}
	steps := strings.Split(strings.TrimSpace(text), "\n")
	if err := r.out.Line(result.Fields{"move": "halfway", "killed": killed, "at": steps[len(steps)-1]}); err != nil {
		return err
	}
	_, err = r.Kube.CoreV1().ConfigMaps(cluster.System).Get(ctx, "ebb-migration", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil // it was killed before it changed anything
	}
	if err != nil {
		return err
	}
	if err := r.move(ctx, "rollback", []string{"migrate", "--rollback"}); err != nil {
		return err
	}
	return r.works(ctx, "rollback")
}

// move runs the command until it is done, and prints how long each step took.
func (r *run) move(ctx context.Context, name string, args []string) error {
	began := time.Now()
	for again := false; ; again = true {
		text, killed, err := r.once(ctx, name, args)
		for line := range strings.Lines(text) {
			step, seconds, ok := stepOf(line)
			if !ok {
				continue
			}
			if err := r.out.Line(result.Fields{"move": name, "step": step, "seconds": seconds}); err != nil {
				return err
			}
		}
		switch {
		case killed:
			r.kills++
			continue
		case again && strings.Contains(text, "there is nothing to go back to"):
			// It was killed after the last thing that it does: it forgets the move.
		case err != nil:
			return fmt.Errorf("%s: %w: %s", name, err, text)
		}
		return r.out.Line(result.Fields{"move": name, "seconds": time.Since(began).Seconds(), "at": time.Now().Format("15:04:05"), "kills": r.kills})
	}
}

// mostKills bounds the runs that are killed. A later one may end.
const mostKills = 12

// once runs the command. With -kill it may not come to its end.
func (r *run) once(ctx context.Context, name string, args []string) (text string, killed bool, err error) {
	var out strings.Builder
	cmd := exec.CommandContext(ctx, r.command, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return "", false, err
	}
	var once sync.Once
	if r.kill && name != "check" && r.kills < mostKills {
		timer := time.AfterFunc(time.Duration(r.random.Int64N(int64(15*time.Second))), func() {
			once.Do(func() { killed = cmd.Process.Signal(syscall.SIGKILL) == nil })
		})
		defer timer.Stop()
	}
	err = cmd.Wait()
	once.Do(func() {}) // killed is settled
	return out.String(), killed && err != nil, err
}

// stepOf reads a line such as "path       bring up Ebb: 4.2 s".
func stepOf(line string) (step string, seconds float64, ok bool) {
	line = strings.TrimSpace(line)
	at := strings.LastIndex(line, ": ")
	if at < 0 {
		return "", 0, false
	}
	if n, err := fmt.Sscanf(line[at:], ": %f s", &seconds); n != 1 || err != nil {
		return "", 0, false
	}
	step, _, _ = strings.Cut(line, " ")
	return step, seconds, true
}

// load starts the requests of all targets.
func (r *run) load() map[string]*probe.Prober {
	busy := 0
	for _, t := range r.targets {
		if !t.rare {
			busy++
		}
	}
	probers := map[string]*probe.Prober{}
	for _, t := range r.targets {
		every := time.Duration(busy) * time.Second / time.Duration(r.rps)
		if t.rare {
			every = rareEvery
		}
		probers[t.name] = probe.StartOnce(r.ClientOf(t.gateway, time.Minute), t.url, every, 500, 1000)
	}
	return probers
}

// rareEvery is the pause between the requests of a Service that is at zero in between.
const rareEvery = 30 * time.Second

// restarts of the containers of pods, by pod and container.
type restarts map[string]int32

// containers counts the restarts of the pods of the namespace that are not told to end.
func (r *run) containers(ctx context.Context) (restarts, error) {
	list, err := r.Kube.CoreV1().Pods(r.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	found := restarts{}
	for _, pod := range list.Items {
		if pod.DeletionTimestamp != nil {
			continue
		}
		for _, c := range pod.Status.ContainerStatuses {
			found[pod.Name+" "+c.Name] = c.RestartCount
		}
	}
	return found, nil
}

// changed counts containers that were restarted, and those of busy Services whose pod is gone.
func (r *run) changed(before, after restarts) (restarted int, gone []string) {
	for name, n := range after {
		if n > before[name] {
			restarted++
		}
	}
	for name := range before {
		if _, is := after[name]; !is && !r.isRare(name) {
			gone = append(gone, name)
		}
	}
	return restarted, gone
}

func (r *run) isRare(pod string) bool {
	for _, t := range r.targets {
		if t.rare && strings.HasPrefix(pod, t.service+"-") {
			return true
		}
	}
	return false
}

func (r *run) say(when string, before restarts) error {
	after, err := r.containers(context.Background())
	if err != nil {
		return err
	}
	restarted, gone := r.changed(before, after)
	slices.Sort(gone)
	return r.out.Line(result.Fields{"when": when, "restarts": restarted, "podsGone": len(gone), "gone": gone})
}

// report stops the requests and says what became of them.
func (r *run) report(probers map[string]*probe.Prober, before restarts) error {
	sent, failed := 0, 0
	var errs []error
	for _, t := range r.targets {
		report := probers[t.name].Stop()
		sent, failed = sent+report.Sent, failed+report.Failed
		fields := result.Fields{"target": t.name, "sent": report.Sent, "failed": report.Failed, "p99": report.Quantile(0.99).Seconds(), "slowest": report.Slowest.Took.Seconds()}
		var failures []string
		for _, f := range report.Failures[:min(len(report.Failures), 5)] {
			failures = append(failures, f.String())
		}
		if failures != nil {
			fields["failures"] = failures
		}
		if err := r.out.Line(fields); err != nil {
			return err
		}
	}
	if failed > 0 {
		errs = append(errs, fmt.Errorf("%d of %d requests failed", failed, sent))
	}
	after, err := r.containers(context.Background())
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	restarted, gone := r.changed(before, after)
	if restarted > 0 {
		errs = append(errs, fmt.Errorf("%d containers were restarted", restarted))
	}
	return errors.Join(append(errs, r.out.Summary(result.Fields{"services": r.services, "rps": r.rps, "sent": sent, "failed": failed, "restarts": restarted,
		"podsGone": len(gone), "kills": r.kills, "seed": r.seed}))...)
}

// local is the gateway for hosts inside the cluster.
func (r *run) local(ctx context.Context) (string, error) {
	service, err := r.Kube.CoreV1().Services(cluster.System).Get(ctx, "ebb-local-istio", metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("find the local gateway: %w", err)
	}
	return net.JoinHostPort(service.Spec.ClusterIP, "80"), nil
}

// note tells a person how far the run is.
func note(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05 ")+format+"\n", args...)
}
