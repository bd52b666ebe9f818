// Command ctl is behind `make up` and `make down`: a real Kubernetes with
// a gateway and Ebb on one bare machine, without a container engine or a registry.
//
// Owns: /run/ebb-dev and the checkout's .dev. Reads: the checkout. Writes: the
// cache, images, network, processes. Never: stops a process that it has not started.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"ebb.dev/ebb/dev/ctl/internal/addresses"
	"ebb.dev/ebb/dev/ctl/internal/kube"
	"ebb.dev/ebb/dev/ctl/internal/place"
	"ebb.dev/ebb/dev/ctl/internal/step"
)

const usage = `usage: ctl COMMAND
  up [all] [monitoring] [bare] [edge] [knative [shipped]] [envoy-gateway] [nodes=3] [v1.35.4]  bring the cluster up, or up to date;
               all: with the metrics server, cert-manager and Prometheus, which tests need;
               monitoring: with Prometheus; bare: without Ebb, with Helm; edge: with Ebb in one
               process; knative: with Knative Serving in place of Ebb; shipped: with the CPU requests
               and the grace period that it ships; envoy-gateway: with Envoy Gateway in place of
               istio; nodes=3: with so many nodes, each with a network of its own; v1.35.4: with
               that version of Kubernetes
  sample NAME  make the image of a sample that up leaves out, llm, for the cluster that is up
  release -version VERSION -registry REGISTRY  write what users install to the folder dist; -help lists more
  sign -key FILE -out FOLDER  sign a release that is there
  down         take it down and leave nothing behind
  kubeconfig   print the lines that point a shell at it
  status       say what runs
  logs [NAME]  list the logs, or show the end of one
  away NAME DURATION    kill a program of the cluster and start it again after a time
  freeze NAME DURATION  stop it with SIGSTOP for a time
  ` + nodeUsage + `  do this to one of several nodes:
               off: cut its power; cut: lose what it receives, sends or both, from and to everyone,
               the API server (control) or the other nodes; freeze: stop everything on it; back: mend it
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return fmt.Errorf("a command is needed")
	}
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(root, "dev", "ctl", "go.mod")); err != nil {
		return fmt.Errorf("%s is not a checkout of Ebb: run `make %s` in one", root, args[0])
	}
	wanted := parts{gateway: istio}
	if args[0] == "up" {
		for _, what := range args[1:] {
			switch what {
			case "all":
				wanted.all, wanted.monitoring = true, true
			case "monitoring":
				wanted.monitoring = true
			case "bare":
				wanted.bare = true
			case "edge":
				wanted.edge = true
			case "knative":
				wanted.knative = true
			case "shipped":
				wanted.shipped = true
			case istio, envoyGateway:
				wanted.gateway = what
			default:
				if count, ok := strings.CutPrefix(what, "nodes="); ok {
					if wanted.nodes, err = parseNodes(count); err != nil {
						return err
					}
					continue
				}
				if !kubernetesVersion.MatchString(what) {
					fmt.Fprint(stderr, usage)
					return fmt.Errorf("up takes no argument %q", what)
				}
				if what != kube.Version {
					wanted.kubernetes = what
				}
			}
		}
	}
	if wanted.edge && wanted.gateway != istio {
		return fmt.Errorf("the profile edge takes CoAP requests to Istio's gateway: leave out GATEWAY=%s", wanted.gateway)
	}
	if wanted.knative && (wanted.bare || wanted.edge || wanted.gateway != istio) {
		return fmt.Errorf("knative goes with none of bare, edge and GATEWAY=%s", envoyGateway)
	}
	if wanted.shipped && !wanted.knative {
		return fmt.Errorf("shipped goes with knative alone: Ebb always has the requests that it ships")
	}
	c := newControl(place.Of(root, os.Getenv), step.New(stderr, terminal(stderr)), stdout)
	switch args[0] {
	case "up":
		return c.up(ctx, &wanted)
	case "sample":
		if len(args) != 2 {
			fmt.Fprint(stderr, usage)
			return fmt.Errorf("sample needs a name: run `make sample NAME=llm`")
		}
		return c.sample(ctx, args[1])
	case "release":
		return c.release(ctx, args[1:], stderr)
	case "sign":
		return sign(args[1:], stderr)
	case "down":
		return c.down(ctx)
	case "kubeconfig":
		return c.kubeconfig()
	case "status":
		return c.status()
	case "logs":
		return c.logs(args[1:])
	case "away", "freeze":
		if len(args) != 3 {
			fmt.Fprint(stderr, usage)
			return fmt.Errorf("%s needs the name of a program, as status prints it, and a duration", args[0])
		}
		return c.disturb(ctx, args[0], args[1], args[2])
	case "node":
		return c.node(ctx, args[1:])
	case "addresses": // started by up, in the background
		return c.addresses(ctx)
	}
	fmt.Fprint(stderr, usage)
	return fmt.Errorf("there is no command %q", args[0])
}

// terminal says whether a person is watching.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("CI") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func (c *control) addresses(ctx context.Context) error {
	log.SetFlags(log.LstdFlags | log.Lmicroseconds)
	if err := c.loadPlan(); err != nil {
		return err
	}
	client, err := c.cluster().Client("admin")
	if err != nil {
		return err
	}
	return addresses.Controller{Client: client, Server: c.cluster().Server(), Pool: c.plan.Balancers()}.Run(ctx)
}
