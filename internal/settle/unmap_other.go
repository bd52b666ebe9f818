//go:build !linux

package settle

import "errors"

func unmap(region) error { return errors.ErrUnsupported }
