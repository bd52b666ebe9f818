// Package step runs the steps of `make up` and `make down` and shows them: one line
// for each step with the time since the start, and a bar during a long step.
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
	every time.Duration // between two progress lines when out is not a terminal
}

// New returns a list whose time starts now.
func New(out io.Writer, live bool) *List {
	return &List{out: out, live: live, start: time.Now(), every: 20 * time.Second}
}

// Elapsed is the time since New.
func (l *List) Elapsed() time.Duration { return time.Since(l.start) }

// Say prints a line that belongs to no step.
func (l *List) Say(format string, args ...any) {
	fmt.Fprintf(l.out, "%s  %s\n", l.stamp(), fmt.Sprintf(format, args...))
}

// Report is how a running step reports its progress.
type Report struct {
	list  *List
	title string
	begin time.Time

	mu     sync.Mutex
	note   string
	shown  time.Time
	filled bool
}

// Note sets the text after the title in the line of the finished step.
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
		fmt.Fprintf(r.list.out, "\r\033[K%s  %s %s%s", r.list.stamp(), r.title, Bar(done, total, what), r.left(now, done, total))
		return
	}
	if r.shown.IsZero() {
		r.shown = r.begin
	}
	if now.Sub(r.shown) < r.list.every {
		return
	}
	r.shown = now
	fmt.Fprintf(r.list.out, "%s    %s %s%s\n", r.list.stamp(), r.title, Bar(done, total, what), r.left(now, done, total))
}

// left says how long the step still takes at its pace so far, once that can be told.
func (r *Report) left(now time.Time, done, total int) string {
	spent := now.Sub(r.begin)
	if done <= 0 || total < done || spent < 10*time.Second {
		return ""
	}
	left := time.Duration(float64(spent) / float64(done) * float64(total-done))
	if left < time.Minute {
		return fmt.Sprintf(", about %d s left", int(left.Seconds()))
	}
	return fmt.Sprintf(", about %.0f min left", left.Minutes())
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
