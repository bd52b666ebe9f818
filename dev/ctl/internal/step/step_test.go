package step

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestDoPrintsALineWithTimeAndNote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		l := New(&out, false)
		time.Sleep(2 * time.Second) // of the bubble's clock
		err := l.Do(t.Context(), "etcd", func(_ context.Context, r *Report) error {
			time.Sleep(1500 * time.Millisecond)
			r.Note("started")
			return nil
		})
		if err != nil || out.String() != "   3.5s  etcd: started (1.5 s)\n" {
			t.Errorf("%v, %q", err, out.String())
		}
	})
}

func TestALogHearsOfProgressNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		l := New(&out, false)
		_ = l.Do(t.Context(), "build", func(_ context.Context, r *Report) error {
			for i := range 60 {
				r.Progress(i, 60, "packages")
				time.Sleep(time.Second)
			}
			return nil
		})
		if n := strings.Count(out.String(), "packages"); n != 2 {
			t.Errorf("%d progress lines in a minute, want one each 20 s:\n%s", n, out.String())
		}
	})
}

func TestATerminalSeesABarThatGoesAway(t *testing.T) {
	var out strings.Builder
	l := New(&out, true)
	_ = l.Do(t.Context(), "build", func(_ context.Context, r *Report) error { r.Progress(5, 10, "packages"); return nil })
	text := out.String()
	if !strings.Contains(text, "[############............] 5/10 packages") || !strings.HasSuffix(text, "build\n") {
		t.Errorf("%q", text)
	}
	if last := text[strings.LastIndex(text, "\r"):]; strings.Contains(last, "packages") {
		t.Errorf("the bar stays: %q", last)
	}
}

func TestAFailureNamesItsStepAndAStopBeginsNone(t *testing.T) {
	l := New(&strings.Builder{}, false)
	cause := errors.New("port taken")
	if err := l.Do(t.Context(), "etcd", func(context.Context, *Report) error { return cause }); !errors.Is(err, cause) || !strings.HasPrefix(err.Error(), "etcd: ") {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Do(ctx, "x", func(context.Context, *Report) error { t.Error("began"); return nil }); err == nil {
		t.Error("no error")
	}
}

func TestBarStaysInBounds(t *testing.T) {
	for _, done := range []int{-1, 0, 7, 99} {
		if bar := Bar(done, 7, "x"); len(bar) > 40 {
			t.Errorf("%d: %q", done, bar)
		}
	}
	if Bar(3, 0, "packages") != "3 packages" {
		t.Error("an unknown total is divided by")
	}
}
