// Package settle gives back the memory that only a busy time of a process needed: garbage, and the pages of the program itself
// that it read once. Registering every kind of Kubernetes at the start touches two thirds of a program of 50 MB, and nothing but
// memory pressure would ever unmap those pages again.
//
// Owns: nothing. Reads: /proc/self/smaps, the processor time used. Writes: nothing. Never: gives back a page that anybody has
// written to; disturbs a process that is at work.
package settle

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"ebb.dev/ebb/internal/run"
)

// Part gives memory back whenever the process has come to rest, its start included.
func Part(log *slog.Logger) run.Part {
	return run.Part{Name: "settle", Run: func(ctx context.Context) error {
		ticker := time.NewTicker(look)
		defer ticker.Stop()
		rest := rest{}
		for {
			select {
			case <-ctx.Done():
				return nil
			case now := <-ticker.C:
				if !rest.due(now, processorTime()) {
					continue
				}
			}
			if mapped, err := Settle(); err != nil {
				log.Info("memory that a busy time has needed is kept", "error", err.Error())
			} else {
				log.Debug("gave back memory that a busy time has needed", "programKiB", mapped)
			}
		}
	}}
}

const (
	look   = 5 * time.Second
	busy   = 250 * time.Millisecond // of processor time between two looks: a twentieth of a core
	seldom = 30 * time.Second       // the least time between two times of giving back
)

// rest notices the end of a busy time.
type rest struct {
	worked bool // since memory was given back
	used   time.Duration
	last   time.Time // that memory was given back; the start at first
}

func (r *rest) due(now time.Time, used time.Duration) bool {
	if r.last.IsZero() {
		r.worked, r.used, r.last = true, used, now // a start is a busy time
		return false
	}
	since := used - r.used
	r.used = used
	if since >= busy {
		r.worked = true
		return false
	}
	if !r.worked || now.Sub(r.last) < seldom {
		return false
	}
	r.worked, r.last = false, now
	return true
}

// Settle collects the garbage and unmaps the unchanged pages of the program. Those that are used again come back from the page
// cache, some at a time, without a read from the disk. It returns how many KiB of the program were mapped.
func Settle() (mappedKiB int, err error) {
	debug.FreeOSMemory()
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return 0, fmt.Errorf("find the running program: %w", err)
	}
	smaps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return 0, fmt.Errorf("find the pages of the running program: %w", err)
	}
	defer smaps.Close()
	regions, err := unchanged(smaps, program)
	if err != nil {
		return 0, err
	}
	for _, r := range regions {
		if err := unmap(r); err != nil {
			return mappedKiB, fmt.Errorf("give back the pages %x-%x of %s: %w", r.from, r.to, program, err)
		}
		mappedKiB += r.residentKiB
	}
	return mappedKiB, nil
}

// region is a part of the address space.
type region struct {
	from, to    uintptr
	residentKiB int
}

// unchanged finds the regions of a program's file that cannot be written to and in which no page is a copy, as it would be after
// a relocation or a debugger's breakpoint: what is in a copy is nowhere else.
func unchanged(smaps io.Reader, program string) ([]region, error) {
	var found []region
	var candidate *region
	lines := bufio.NewScanner(smaps)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		if !strings.HasSuffix(fields[0], ":") { // the first line of a region: from-to permissions offset device inode path
			if candidate != nil {
				found = append(found, *candidate)
			}
			candidate = nil
			if len(fields) < 6 || strings.Join(fields[5:], " ") != program || strings.Contains(fields[1], "w") || !strings.Contains(fields[1], "p") {
				continue
			}
			from, to, _ := strings.Cut(fields[0], "-")
			begin, err := strconv.ParseUint(from, 16, 64)
			end, err2 := strconv.ParseUint(to, 16, 64)
			if err != nil || err2 != nil || end <= begin {
				return nil, fmt.Errorf("smaps has a region %q", fields[0])
			}
			candidate = &region{from: uintptr(begin), to: uintptr(end)}
			continue
		}
		if candidate == nil {
			continue
		}
		switch fields[0] {
		case "Rss:":
			kib, err := strconv.Atoi(fields[1])
			if err != nil {
				return nil, fmt.Errorf("smaps has the line %q", lines.Text())
			}
			candidate.residentKiB = kib
		case "Anonymous:":
			if fields[1] != "0" {
				candidate = nil
			}
		}
	}
	if candidate != nil {
		found = append(found, *candidate)
	}
	return found, lines.Err()
}
