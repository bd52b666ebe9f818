// Package step runs what `make up` and `make down` do, one named step after
// another, and shows it: a line per step with the time since the start, and a
// bar while a long one works.
//
// Owns: the terminal. Reads: the clock. Writes: standard error. Never: decides
// what a step does or whether it is needed.
package step

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// List prints steps. The zero value is not usable, see New.
type List struct {
	out   io.Writer
	live  bool // a terminal, on which a line may be drawn again
	start time.Time
	every time.Duration // how often a log (not a terminal) hears of progress
}

// New returns a list that starts counting now.
func New(out io.Writer, live bool) *List {
	return &List{out: out, live: live, start: time.Now(), every: 20 * time.Second}
}

// Elapsed is the time since New.
func (l *List) Elapsed() time.Duration { return time.Since(l.start) }

// Report is how a running step says what it is doing.
type Report struct {
	list  *List
	title string
	begin time.Time

	mu     sync.Mutex
	note   string
	shown  time.Time
	filled bool
}

// Note sets what the step's finished line says in brackets.
func (r *Report) Note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note = fmt.Sprintf(format, args...)
}

// Progress shows that done of total are done. A total of 0 means unknown.
func (r *Report) Progress(done, total int, what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if r.list.live {
		if now.Sub(r.shown) < 100*time.Millisecond && done != total {
			return
		}
		r.shown, r.filled = now, true
		fmt.Fprintf(r.list.out, "\r\033[K%s  %s %s", r.list.stamp(), r.title, Bar(done, total, what))
		return
	}
	if r.shown.IsZero() {
		r.shown = r.begin
	}
	if now.Sub(r.shown) < r.list.every {
		return
	}
	r.shown = now
	fmt.Fprintf(r.list.out, "%s    %s %s\n", r.list.stamp(), r.title, Bar(done, total, what))
}

// Bar draws progress in 24 columns.
func Bar(done, total int, what string) string {
	if total <= 0 {
		return fmt.Sprintf("%d %s", done, what)
	}
	done = min(max(done, 0), total)
	const width = 24
	full := done * width / total
	return fmt.Sprintf("[%s%s] %d/%d %s", strings.Repeat("#", full), strings.Repeat(".", width-full), done, total, what)
}

// Do runs one step and prints its line.
func (l *List) Do(ctx context.Context, title string, f func(context.Context, *Report) error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s: stopped before it began: %w", title, context.Cause(ctx))
	}
	r := &Report{list: l, title: title, begin: time.Now()}
	if l.live {
		fmt.Fprintf(l.out, "%s  %s ...", l.stamp(), title)
	}
	err := f(ctx, r)
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.live {
		fmt.Fprint(l.out, "\r\033[K")
	}
	took := time.Since(r.begin)
	if err != nil {
		fmt.Fprintf(l.out, "%s  %s failed after %.1f s\n", l.stamp(), title, took.Seconds())
		return fmt.Errorf("%s: %w", title, err)
	}
	line := fmt.Sprintf("%s  %s", l.stamp(), title)
	if r.note != "" {
		line += ": " + r.note
	}
	if took > 50*time.Millisecond {
		line += fmt.Sprintf(" (%.1f s)", took.Seconds())
	}
	fmt.Fprintln(l.out, line)
	return nil
}

func (l *List) stamp() string { return fmt.Sprintf("%6.1fs", l.Elapsed().Seconds()) }
