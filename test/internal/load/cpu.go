package load

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// tick is the unit of /proc/stat (proc_stat(5)), a hundredth of a second on all platforms that Ebb
// supports.
const tick = 10 * time.Millisecond

// spent returns the CPU time that the whole machine and this process have used since they started.
func spent() (machine, own time.Duration, err error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, fmt.Errorf("read the machine's CPU time: %w", err)
	}
	line, _, _ := strings.Cut(string(data), "\n")
	fields := strings.Fields(line)
	if len(fields) < 8 || fields[0] != "cpu" {
		return 0, 0, errors.New("/proc/stat does not begin with the sum of all CPUs")
	}
	for i, field := range fields[1:8] { // user nice system idle iowait irq softirq
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("/proc/stat: %w", err)
		}
		if i != 3 && i != 4 {
			machine += time.Duration(ticks) * tick
		}
	}
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0, 0, fmt.Errorf("read the CPU time of this process: %w", err)
	}
	return machine, time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), nil
}
