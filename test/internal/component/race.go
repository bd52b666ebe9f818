//go:build race

package component

const raceDetector = true
