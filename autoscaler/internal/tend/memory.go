package tend

import (
	"context"
	"log/slog"
	"time"

	"ebb.dev/ebb/internal/run"
)

// MemoryLoop keeps the memory that sleeping pods take within a share of the nodes' memory. It
// raises the price of memory while they take more, so that the pods go that are worth least,
// whichever revision they are of.
//
// Pods that a number or a schedule asks for pay no price, and count for none. They have as much
// memory again, which is divided among the namespaces that ask: what one of them asks for takes
// nothing from another.
//
// The share is of all nodes together. The scheduler spreads pods, so each node has about its part.
type MemoryLoop struct {
	// Nodes returns the allocatable memory of all nodes, Asleep what the sleeping pods take that
	// pay, and Asked what those would take that do not, in MiB.
	Nodes         func(context.Context) (mib float64, err error)
	Asleep, Asked func() (mib float64)
	// Percent is the share.
	Percent func() float64
	// Charge sets the price, Divide the memory of pods that do not pay it.
	Charge, Divide func(float64)
	Log            *slog.Logger

	price, nodes float64
	asked        time.Time
}

const (
	// A change of the price takes effect, and pods go, within about this time.
	chargePeriod = 30 * time.Second
	// nodesPeriod is how often the nodes are asked for.
	nodesPeriod = 10 * time.Minute
	// highestPrice bounds the price, so that it falls again in time.
	highestPrice = 1 << 20
)

// Run sets the price until ctx ends.
func (l *MemoryLoop) Run(ctx context.Context) error {
	return run.Every(ctx, chargePeriod, func(time.Time) error {
		l.step(ctx)
		return nil
	})
}

// step sets the price. Without sleeping pods nobody is asked for anything.
func (l *MemoryLoop) step(ctx context.Context) {
	asleep := l.Asleep()
	if asleep+l.Asked() > 0 && (l.asked.IsZero() || time.Since(l.asked) >= nodesPeriod) {
		mib, err := l.Nodes(ctx)
		if err != nil {
			l.Log.Warn("cannot read the nodes' memory; the price of memory stays", "error", err)
			return
		}
		l.nodes, l.asked = mib, time.Now()
	}
	before, budget := max(l.price, 1), l.nodes*l.Percent()/100
	if !l.asked.IsZero() {
		l.Divide(budget)
	}
	switch {
	case asleep > budget:
		l.price = min(before*2, highestPrice)
	case asleep < budget*0.8 || asleep == 0:
		l.price = max(before/2, 1)
	default:
		l.price = before
	}
	if l.price != before {
		l.Log.Info("changed the price of memory for pods that sleep", "price", l.price, "asleepMiB", asleep, "nodesMiB", l.nodes)
	}
	l.Charge(l.price)
}
