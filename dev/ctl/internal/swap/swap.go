// Package swap gives the node swap in compressed memory (zram), so that pods that sleep can be
// compressed.
//
// Owns: one zram device, named in a file while it is in use. Reads: which devices the kernel has.
// Writes: that file, and the kernel's list of swap devices. Never: touches another device; uses a
// disk.
package swap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// size is how much the device holds, before compression.
const size = 4 << 30

// ErrNone says that the kernel has no zram.
var ErrNone = errors.New("the kernel has no zram")

// control is where the kernel adds and removes zram devices.
const control = "/sys/class/zram-control"

// On switches swap on, if it is not on already, and writes the device's number to file. Errors
// leave nothing behind.
func On(ctx context.Context, file string) (device string, err error) {
	if number, err := os.ReadFile(file); err == nil {
		return name(string(number)), nil
	}
	number, err := os.ReadFile(filepath.Join(control, "hot_add"))
	if errors.Is(err, os.ErrNotExist) {
		return "", ErrNone
	}
	if err != nil {
		return "", fmt.Errorf("add a zram device: %w", err)
	}
	number = []byte(strings.TrimSpace(string(number)))
	device = name(string(number))
	defer func() {
		if err != nil {
			err = errors.Join(err, Off(context.WithoutCancel(ctx), file))
		}
	}()
	if err := os.WriteFile(file, number, 0o644); err != nil {
		return "", errors.Join(err, remove(string(number)))
	}
	if err := os.WriteFile(filepath.Join("/sys/block", filepath.Base(device), "disksize"), []byte(strconv.Itoa(size)), 0o644); err != nil {
		return "", fmt.Errorf("size %s: %w", device, err)
	}
	if err := run(ctx, "mkswap", device); err != nil {
		return "", err
	}
	return device, run(ctx, "swapon", device)
}

// Off switches off what On switched on.
func Off(ctx context.Context, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil // On was not called, or removed the device itself
	}
	number := string(text)
	on, err := os.ReadFile("/proc/swaps")
	if err != nil {
		return err
	}
	if strings.Contains(string(on), name(number)+" ") || strings.Contains(string(on), name(number)+"\t") {
		if err := run(ctx, "swapoff", name(number)); err != nil {
			return err
		}
	}
	if err := remove(number); err != nil {
		return err
	}
	return os.Remove(file)
}

func name(number string) string { return "/dev/zram" + number }

func remove(number string) error {
	err := os.WriteFile(filepath.Join(control, "hot_remove"), []byte(number), 0o200)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove zram device %s: %w", number, err)
	}
	return nil
}

func run(ctx context.Context, command, device string) error {
	if text, err := exec.CommandContext(ctx, command, device).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", command, device, err, strings.TrimSpace(string(text)))
	}
	return nil
}
