package main

import (
	"context"
	"fmt"
	"maps"
	"math"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"ebb.dev/ebb/dev/ctl/internal/preflight"
)

const gib = 1 << 30

// What `make up` costs, measured with Kubernetes 1.37.2. Most of a build is packages that several
// programs share; they count for the first program in the order of folders.
var (
	buildCPU = map[string]time.Duration{
		"kube": 700 * time.Second, "dns": 15 * time.Second, "istio": 450 * time.Second, "istio/chart": 5 * time.Second,
		envoyGateway: 320 * time.Second, "metrics": 10 * time.Second, "certmanager": 25 * time.Second, "targets": 5 * time.Second, standin: 5 * time.Second, knative: 260 * time.Second,
	}
	ebbCPU  = 60 * time.Second // Ebb itself, when the packages that it shares with the above are built
	start   = 60 * time.Second // from the first program to the samples' answers
	fetches = 60 * time.Second // packages of Debian and Python, and modules
	perNode = 20 * time.Second // what each further node adds: the images are imported once more
)

// What a cluster takes of the disk, measured with three nodes and all that tests need: the images
// of a node, unpacked, and the rest: programs, logs, etcd. The images of a new Ebb come beside
// those that are there.
const (
	nodeDisk = 3 * gib
	restDisk = 1 * gib
	newDisk  = 1 * gib // for each node
)

// forecast is how long `make up` takes and what it needs on the disk.
type forecast struct {
	cpus    int
	nodes   int // besides the first
	running bool
	build   []string          // folders of dev/ whose programs are not built yet
	disk    map[string]uint64 // folder -> bytes
	images  string            // the folder with the images
	free    uint64            // of its disk
}

func (c *control) forecast(ctx context.Context, p *parts) (forecast, error) {
	_, missing, err := c.module().Cached(ctx, c.Cache, folders(p)...)
	if err != nil {
		return forecast{}, err
	}
	if p.kubernetes != "" {
		if more, err := c.otherKubernetesMissing(ctx, p); err != nil {
			return forecast{}, err
		} else if more {
			missing = append(missing, "kube")
		}
	}
	if p.gateway == envoyGateway {
		_, more, err := c.envoyGatewayModule().Cached(ctx, c.Cache, "gateway")
		if err != nil {
			return forecast{}, err
		}
		for range more {
			missing = append(missing, envoyGateway)
		}
	}
	if p.knative {
		_, more, err := c.knativeModule().Cached(ctx, c.Cache, knativePrograms...)
		if err != nil {
			return forecast{}, err
		}
		if len(more) > 0 {
			missing = append(missing, knative)
		}
	}
	f := forecast{cpus: runtime.NumCPU(), nodes: p.nodes - 1, running: c.table.Running(c.oneOf("kubelet")), build: missing, images: c.Dev}
	disk, err := c.machine.Disk(c.Dev)
	if err != nil {
		return forecast{}, fmt.Errorf("read the free space of %s: %w", c.Dev, err)
	}
	f.free = disk.Free
	nodes := uint64(max(p.nodes, 1)) // each has all images
	f.disk = map[string]uint64{c.Dev: restDisk + nodes*nodeDisk}
	if f.running {
		f.disk[c.Dev] = nodes * newDisk
	}
	if len(missing) > 0 {
		f.disk[c.Cache] = 2 * gib
	}
	if slices.ContainsFunc(missing, func(folder string) bool { return buildCPU[folder] > time.Minute }) { // the others need little
		out, err := exec.CommandContext(ctx, "go", "env", "GOCACHE", "GOMODCACHE").Output()
		if err != nil {
			return forecast{}, fmt.Errorf("ask go for its cache: %w", err)
		}
		if dirs := strings.Fields(string(out)); len(dirs) == 2 {
			f.disk[dirs[0]], f.disk[dirs[1]] = 4*gib, 3*gib
		}
	}
	return f, nil
}

// takes is how long `make up` takes on idle CPUs.
func (f forecast) takes() time.Duration {
	switch {
	case len(f.build) > 0:
		cpu := ebbCPU
		for _, folder := range f.build {
			cpu += buildCPU[folder]
		}
		return f.starts() + fetches + cpu/time.Duration(f.cpus)
	case f.running:
		return 10 * time.Second
	}
	return f.starts()
}

func (f forecast) starts() time.Duration { return start + time.Duration(max(f.nodes, 0))*perNode }

func (f forecast) String() string {
	var text strings.Builder
	switch minutes := f.takes().Minutes(); {
	case len(f.build) > 0:
		fmt.Fprintf(&text, "this takes about %.0f min on %d idle CPUs, less if Go's build cache has some of the packages of %s",
			math.Ceil(minutes), f.cpus, strings.Join(f.build, ", "))
	case minutes < 1:
		fmt.Fprintf(&text, "the cluster runs and is brought up to date: this takes about %.0f s, and more after a change of the code", minutes*60)
	default:
		fmt.Fprintf(&text, "everything but Ebb is built: this takes about %.0f min", math.Ceil(minutes))
	}
	var sum uint64
	for _, bytes := range f.disk {
		sum += bytes
	}
	if sum > 0 {
		var folders []string
		for _, dir := range slices.Sorted(maps.Keys(f.disk)) {
			folders = append(folders, fmt.Sprintf("%s in %s", preflight.Size(f.disk[dir]), filepath.Clean(dir)))
		}
		fmt.Fprintf(&text, "; it needs up to %s of disk: %s", preflight.Size(sum), strings.Join(folders, ", "))
	}
	fmt.Fprintf(&text, "; %s has %s free", f.images, preflight.Size(f.free))
	return text.String()
}
