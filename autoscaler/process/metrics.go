package process

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"ebb.dev/ebb/autoscaler/internal/act"
	"ebb.dev/ebb/autoscaler/internal/ingest"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/internal/nodes"
	"ebb.dev/ebb/autoscaler/internal/report"
	"ebb.dev/ebb/autoscaler/internal/startup"
	"ebb.dev/ebb/autoscaler/internal/tend"
)

// durations observe how long things took.
type durations struct {
	scrape          func(d time.Duration, counted bool)
	write, reaction func(time.Duration)
}

func observe(registry *prometheus.Registry) durations {
	histogram := func(name, help string, first float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help,
			Buckets: prometheus.ExponentialBuckets(first, 2, 14)})
		registry.MustRegister(h)
		return h
	}
	scrapes := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "kn_autoscaler_scrape_duration_seconds",
		Help: "Time to scrape the sample of one revision's pods.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 13)}, []string{"counted"})
	registry.MustRegister(scrapes)
	counted := map[bool]prometheus.Observer{true: scrapes.WithLabelValues("true"), false: scrapes.WithLabelValues("false")}
	writes := histogram("ebb_autoscaler_scale_write_seconds", "Time from the news that asks for another scale to the end of its write.", 0.001)
	reaction := histogram("ebb_autoscaler_stat_decision_seconds", "Time from a stat's arrival to the decision that counts it.", 0.0001)
	return durations{
		scrape:   func(d time.Duration, ok bool) { counted[ok].Observe(d.Seconds()) },
		write:    func(d time.Duration) { writes.Observe(d.Seconds()) },
		reaction: func(d time.Duration) { reaction.Observe(d.Seconds()) },
	}
}

func counts(s *ingest.Server, e *loop.Engine, w *act.Writer, t *tend.Tender, b *startup.Booster, n *nodes.Watcher, foreign int64) []report.Count {
	const refused, stats, orders = "ebb_autoscaler_stats_refused_total", "ebb_autoscaler_stats_total", "ebb_autoscaler_orders_total"
	const standby, limits = "ebb_autoscaler_standby_orders_total", "ebb_autoscaler_startup_cpu_resizes_total"
	const verdicts = "ebb_autoscaler_node_verdicts_total"
	help := map[string]string{refused: "Rejected stats, by reason.", stats: "Accepted stats, by where they went.", orders: "Orders, by outcome.",
		standby:  "Orders to pods to sleep, to wake or to be compressed, by outcome.",
		limits:   "Changes of the CPU limit of pods that start, by outcome.",
		verdicts: "Verdicts about nodes that did not answer, or answer again."}
	var all []report.Count
	add := func(name, reason string, n int64) {
		all = append(all, report.Count{Name: name, Help: help[name], Reason: reason, Value: n})
	}
	add(refused, "unauthorized", s.Refused.Unauthorized.Load())
	add(refused, "forged", s.Refused.Forged.Load())
	add(refused, "clock", s.Guard.OtherClock.Load())
	add(refused, "replayed", s.Guard.Replayed.Load())
	add(refused, "malformed", s.Refused.Malformed.Load())
	add(refused, "invalid_value", s.Refused.Insane.Load())
	add(refused, "no-owner", s.Refused.NoOwner.Load())
	add(refused, "busy", s.Refused.Busy.Load())
	add(refused, "foreign-pod", foreign)
	add(stats, "own", s.Accepted.Load())
	add(stats, "forwarded", s.Forwarded.Load())
	add(orders, "scale-written", w.Written.Load())
	add(orders, "failed", w.Failed.Load())
	add(orders, "stale", w.Stale.Load())
	add(orders, "dropped", w.Dropped())
	add(standby, "slept", t.Slept.Load())
	add(standby, "woken", t.Woken.Load())
	add(standby, "compressed", t.Compressed.Load())
	add(standby, "failed", t.Refused.Load())
	add(verdicts, "silent", n.Silent.Load())
	add(verdicts, "lost", n.Lost.Load())
	add(verdicts, "well", n.Back.Load())
	add(limits, "raised", b.Raised.Load())
	add(limits, "lowered", b.Lowered.Load())
	add(limits, "refused", b.Refused.Load())
	add(limits, "failed", b.Failed.Load())
	for reason, n := range e.Refused() {
		add(refused, string(reason), n)
	}
	return all
}
