// Package trial is how a benchmark begins and ends.
//
// Owns: the process. Reads: nothing. Writes: its error. Never: asserts a figure.
package trial

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"ebb.dev/ebb/test/internal/cluster"
)

// Main runs a benchmark until it ends or the process is told to stop. The process ends with status
// 1 if it fails.
func Main(name string, run func(context.Context) error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		stop()
		os.Exit(1)
	}
}

// OnCluster runs a benchmark in a namespace of its own, with keys of Ebb's ConfigMaps, by name,
// that it sets. In the end it reverts that, and what run has added to Undo.
func OnCluster(name string, config map[string]map[string]string, run func(context.Context, *Place) error) {
	Main(name, func(ctx context.Context) error { return at(ctx, name, config, run) })
}

// Place is where a benchmark works on the cluster.
type Place struct {
	*cluster.Cluster
	Namespace string // its own
	Undo      cluster.Undo
}

func at(ctx context.Context, name string, config map[string]map[string]string, run func(context.Context, *Place) error) (err error) {
	p := &Place{}
	if p.Cluster, err = cluster.Connect(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Undo.Run()) }()
	for of, keys := range config {
		restore, err := p.SetConfig(ctx, of, keys)
		if err != nil {
			return err
		}
		p.Undo = append(p.Undo, restore)
	}
	namespace, remove, err := p.Cluster.Namespace(ctx, name)
	if err != nil {
		return err
	}
	p.Namespace, p.Undo = namespace, append(p.Undo, remove)
	return run(ctx, p)
}
