"""Files and URLs in, one MP4 out: pictures, videos and sounds are read, judged and resized here. Knows no model."""
