package tend

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
)

func TestMemoryCostsMoreWhileSleepingPodsTakeTooMuch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asleep, price, divided, asked := 0.0, 0.0, 0.0, 0
		var broken error
		b := &MemoryLoop{Log: slog.New(slog.DiscardHandler), Percent: func() float64 { return 10 },
			Nodes:  func(context.Context) (float64, error) { asked++; return 10_000, broken },
			Asleep: func() float64 { return asleep }, Asked: func() float64 { return 0 }, Divide: func(mib float64) { divided = mib }, Charge: func(p float64) { price = p }}
		for i, c := range []struct {
			asleep float64
			want   float64
			err    error
		}{
			{0, 1, nil},
			{500, 1, nil},
			{1001, 2, nil},
			{1001, 4, nil},
			{900, 4, nil}, // near the bound it stays
			{700, 2, nil},
			{700, 1, nil},
			{0, 1, nil},
		} {
			asleep = c.asleep
			b.step(t.Context())
			if price != c.want {
				t.Errorf("step %d: with %.0f MiB the price is %v, want %v", i, c.asleep, price, c.want)
			}
		}
		if divided != 1000 {
			t.Errorf("%v MiB are divided", divided)
		}
		if asked != 1 {
			t.Errorf("the nodes were asked for %d times", asked)
		}
		asleep = 5000
		for range 100 {
			b.step(t.Context())
		}
		if price != highestPrice {
			t.Errorf("the price is %v", price)
		}
		b.asked, broken = b.asked.Add(-nodesPeriod), errors.New("away")
		asleep = 0
		b.step(t.Context())
		asleep = 5000
		before := price
		b.step(t.Context())
		if price != before {
			t.Error("the price changed without knowing the nodes")
		}
	})
}
