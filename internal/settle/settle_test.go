package settle

import (
	"context"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const smaps = `00400000-01a00000 r-xp 00001000 fe:00 131 /ko-app/my program
Size:              22528 kB
Rss:               17204 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
01a00000-03400000 r--p 01600000 fe:00 131 /ko-app/my program
Rss:               15500 kB
Anonymous:             4 kB
03400000-03500000 rw-p 03000000 fe:00 131 /ko-app/my program
Rss:                 552 kB
Anonymous:             0 kB
03500000-03600000 r--s 03000000 fe:00 131 /ko-app/my program
Rss:                 100 kB
Anonymous:             0 kB
c000000000-c004000000 rw-p 00000000 00:00 0
Rss:                6928 kB
Anonymous:          6928 kB
7fff0000-7fff1000 r-xp 00000000 fe:00 99 /lib/libc.so
Rss:                   4 kB
Anonymous:             0 kB
80000000-80001000 r--p 01600000 fe:00 131 /ko-app/my program
Rss:                   4 kB
Anonymous:             0 kB
`

func TestOnlyUnchangedPagesOfTheProgramAreGivenBack(t *testing.T) {
	got, err := unchanged(strings.NewReader(smaps), "/ko-app/my program")
	want := []region{{0x400000, 0x1a00000, 17204}, {0x80000000, 0x80001000, 4}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	for _, bad := range []string{"zz-01 r-xp 0 fe:00 1 /p\n", "02-01 r-xp 0 fe:00 1 /p\n", "01-02 r-xp 0 fe:00 1 /p\nRss: many kB\n"} {
		if got, err := unchanged(strings.NewReader(bad), "/p"); err == nil {
			t.Errorf("%q gives %v", bad, got)
		}
	}
}

func TestTheProgramRunsOnWithFewerPages(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux says which pages are mapped")
	}
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	resident := func() (kib int) {
		text, err := os.ReadFile("/proc/self/smaps")
		if err != nil {
			t.Fatal(err)
		}
		regions, err := unchanged(strings.NewReader(string(text)), program)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range regions {
			kib += r.residentKiB
		}
		return kib
	}
	before := resident()
	given, err := Settle()
	if err != nil {
		t.Fatal(err)
	}
	if after := resident(); given == 0 || after >= before {
		t.Errorf("%d KiB of the program are mapped, %d before; Settle says that it gave back %d", after, before, given)
	}
}

func TestMemoryIsGivenBackOnceAfterEachBusyTime(t *testing.T) {
	var r rest
	start := time.Now()
	used := time.Second
	for _, step := range []struct {
		at   time.Duration
		uses time.Duration
		due  bool
		why  string
	}{
		{0, 0, false, "it has only begun"},
		{5 * time.Second, time.Second, false, "the start goes on"},
		{10 * time.Second, 0, false, "it rests, but not for long enough since it began"},
		{30 * time.Second, 50 * time.Millisecond, true, "the start is over"},
		{65 * time.Second, 50 * time.Millisecond, false, "nothing has happened since"},
		{70 * time.Second, 2 * time.Second, false, "it works"},
		{75 * time.Second, 2 * time.Second, false, "it still works"},
		{80 * time.Second, 0, true, "the work is over"},
		{85 * time.Second, time.Second, false, "it works again"},
		{90 * time.Second, 0, false, "the last time was a moment ago"},
		{110 * time.Second, 0, true, "and is now long ago"},
		{500 * time.Second, 0, false, "nothing has happened since"},
	} {
		used += step.uses
		if got := r.due(start.Add(step.at), used); got != step.due {
			t.Errorf("after %s: %v, want %v: %s", step.at, got, step.due, step.why)
		}
	}
}

func TestThePartEndsWithTheProcess(t *testing.T) {
	for _, runs := range []time.Duration{time.Second, time.Hour} { // before and after it has done its work
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), runs)
			defer cancel()
			if err := Part(slog.New(slog.DiscardHandler)).Run(ctx); err != nil {
				t.Error(err)
			}
			if ctx.Err() == nil {
				t.Error("it ended before the process did")
			}
		})
	}
}
