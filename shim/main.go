// Command shim makes any program a service. It takes the requests of the container and runs the
// program for them: as a server that it starts once, or as a process for each request. It owns the
// container's port and processes; it reads its environment; it writes the program's standard error
// to its log; it never talks to Kubernetes.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"ebb.dev/ebb/shim/internal/config"
	"ebb.dev/ebb/shim/internal/front"
)

func main() {
	args := os.Args[1:]
	var err error
	switch {
	case len(args) == 1 && (args[0] == "-h" || args[0] == "-help" || args[0] == "--help" || args[0] == "help"):
		fmt.Print(config.Help())
		return
	case len(args) == 2 && args[0] == "install":
		err = install(args[1])
	case len(args) > 0 && args[0] != "--":
		err = fmt.Errorf(`unknown arguments %q: put the program after "--", or see shim --help`, args)
	default:
		err = run(args[min(len(args), 1):])
	}
	if err == nil {
		return
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintf(os.Stderr, "shim: %s\n", strings.TrimSuffix(line, "\n"))
	}
	os.Exit(status(err))
}

// status is the exit status of the shim: the program's, if that has ended.
func status(err error) int {
	var ended *front.Ended
	switch {
	case !errors.As(err, &ended):
		return 1
	case ended.Exit.Status < 0:
		return 128 + int(ended.Exit.Signal) // as shells do
	case ended.Exit.Status == 0:
		return 1 // a server that ends is no success
	}
	return ended.Exit.Status
}

func run(command []string) error {
	c, err := config.Parse(os.Getenv, command, runtime.GOMAXPROCS(0))
	if err != nil {
		return err
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: c.LogLevel})).With("component", "shim")
	// The first signal ends the shim after the requests in progress, the second ends them, too.
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	now, stopNow := context.WithCancel(context.Background())
	defer stopNow()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-signals
		stop()
		<-signals
		stopNow()
	}()
	return serve(ctx, now, c, log)
}
