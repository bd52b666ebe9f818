//go:build !linux

package settle

import (
	"errors"
	"time"
)

func unmap(region) error { return errors.ErrUnsupported }

func processorTime() time.Duration { return 0 }
